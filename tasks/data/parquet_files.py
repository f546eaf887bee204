"""Reads Parquet files as the Hugging Face hub has them: a row per image.

The split is in the name of the file or its folder (`train.parquet`,
`data/test-00000-of-00002.parquet`, `validation/part.parquet`).
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.data import raw_dataset
from tasks.data.listing import check_splits, list_files, split_of_parquet
from tasks.data.raw_dataset import Piece, RawImage, Unit

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tasks.data.raw_dataset import Columns


# Names of the columns in data sets of the hub, the usual one first.
USUAL = {"image_column": ("image", "img"), "label_column": ("label", "labels")}


@dataclass(frozen=True)
class ParquetFiles:
    """The Parquet files in a folder.

    Attributes:
        root: The folder that the files' names are relative to.
        image_column: The column with the images; None if it has a usual name.
        label_column: The column with their classes; None if it has a usual name.
        labelled: Whether the images have classes, and the names splits.
    """

    root: Path
    image_column: str | None
    label_column: str | None
    labelled: bool = True

    def parts(self) -> Iterator[Unit]:
        """The row groups; one that is too large for a task is divided."""
        files = (file for file in list_files(self.root) if file[0].endswith(".parquet"))
        for name, _ in list(check_splits(files, split_of_parquet) if self.labelled else files):
            with self._open_parquet(name) as parquet:
                begin = 0
                for number in range(parquet.num_row_groups):
                    row_group = parquet.metadata.row_group(number)
                    total = row_group.num_rows
                    # Reading a part also reads the rows before it, so the parts are few.
                    length = math.ceil(total / max(1, math.ceil(total / raw_dataset.MAX_UNIT_ROWS)))
                    for skip in range(0, total, length or 1):
                        rows = min(length, total - skip)
                        piece = Piece(name, number, begin + skip, skip, rows)
                        size = row_group.total_byte_size * rows // total
                        yield Unit(rows, size, pieces=(piece,))
                    begin += total

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit; see `tasks.data.raw_dataset.Reader`."""
        for name, pieces in groupby(unit.pieces, key=lambda piece: piece.file):
            yield from self._read_parquet(name, pieces)

    def unit_of(self, images: Sequence[tuple[str, int]]) -> Unit:
        """A unit with certain images; see `tasks.data.raw_dataset.Reader`."""
        pieces = []
        for name, of_file in groupby(images, key=itemgetter(0)):
            wanted, begin = [row for _, row in of_file], 0
            with self._open_parquet(name) as parquet:
                for number in range(parquet.num_row_groups):
                    end = begin + parquet.metadata.row_group(number).num_rows
                    if inside := wanted[bisect_left(wanted, begin) : bisect_left(wanted, end)]:
                        first, rows = inside[0], inside[-1] + 1 - inside[0]
                        pieces.append(Piece(name, number, first, first - begin, rows))
                    begin = end
        return Unit(sum(piece.rows for piece in pieces), 0, pieces=tuple(pieces))

    def _read_parquet(self, name: str, pieces: Iterable[Piece]) -> Iterator[RawImage]:
        import pyarrow as pa

        split = split_of_parquet(name)
        with self._open_parquet(name) as parquet:
            image, label = self._columns(name, parquet.schema_arrow)
            names = _class_names(name, parquet.schema_arrow, label) if label else None
            columns = [image, label] if label else [image]
            for piece in pieces:
                row = piece.first_row
                try:
                    for batch in _read_rows(parquet, piece, columns):
                        with _reading_text(name, image, row):
                            images = _path_and_bytes(batch[image])
                        labels: list[str | int | None] = [None] * len(batch)
                        if label:
                            with _reading_text(name, label, row):
                                labels = batch[label].to_pylist()
                        for (path, data), value in zip(images, labels, strict=True):
                            path = path or f"{name}:{row}"
                            yield RawImage(name, row, path, _label(value, names), split, data)
                            row += 1
                except (pa.ArrowInvalid, OSError) as error:
                    raise _fault(f"{name} is broken after row {row}", name, error) from None

    def _open_parquet(self, name: str) -> "pq.ParquetFile":
        """Opens a file that has the columns, with the right types."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # Mapped, because a row group may be larger than the memory.
            parquet = pq.ParquetFile(self.root / name, memory_map=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise _fault(f"{name} is no Parquet file", name, error) from None
        schema = parquet.schema_arrow
        image, label = self._columns(name, schema)
        kind = schema.field(image).type
        if not _holds_images(kind):
            raise ValueError(
                f"{name}: the column {image!r} is {kind}; an image is its encoded "
                "bytes (binary), or a struct of `bytes` (binary) and `path` (string). See "
                f"{self._setting('image_column')}."
            )
        kind = label and schema.field(label).type
        if label and not _holds_labels(kind):
            raise ValueError(
                f"{name}: the column {label!r} is {kind}; a class is a name or a "
                "whole number. See data.label_column."
            )
        return parquet

    def _columns(self, name: str, schema: "pa.Schema") -> tuple[str, str | None]:
        """The columns with the images and with their classes, if they have classes.

        Raises:
            ValueError: A column is missing, or there are two of its name.
        """
        image = _find_column(
            name, schema, "image_column", self.image_column, self._setting("image_column")
        )
        if not self.labelled:
            return image, None
        return image, _find_column(
            name, schema, "label_column", self.label_column, self._setting("label_column")
        )

    def _setting(self, key: str) -> str:
        """Where the user says which column it is."""
        return f"data.{key}" if self.labelled else f"--{key.replace('_', '-')}"


def open_reader(data: "Columns", root: Path) -> ParquetFiles:
    """The Parquet files in a folder, with the columns that the workload names."""
    return ParquetFiles(root, data.image_column, data.label_column)


def open_unlabelled(root: Path, image_column: str | None) -> ParquetFiles:
    """The Parquet files in a folder, of which only the images are read."""
    return ParquetFiles(root, image_column, None, labelled=False)


def _find_column(name: str, schema: "pa.Schema", key: str, wanted: str | None, setting: str) -> str:
    """The column that is wanted, or that has a usual name; `setting` is where one is named."""
    names = (wanted,) if wanted else USUAL[key]
    column = next((each for each in names if each in schema.names), None)
    if column is None:
        raise ValueError(
            f"{name} has no column {' or '.join(map(repr, names))}, but "
            f"{', '.join(schema.names)}: set {setting} to one of them."
        )
    if schema.names.count(column) > 1:
        raise ValueError(
            f"{name} has {schema.names.count(column)} columns with the name {column!r}: rename all "
            f"but one, or set {setting} to another."
        )
    return column


def _read_rows(
    parquet: "pq.ParquetFile", piece: Piece, columns: list[str]
) -> Iterator["pa.RecordBatch"]:
    """The rows of a piece, a few at a time."""
    batches = parquet.iter_batches(
        batch_size=64, row_groups=[piece.row_group], columns=columns, use_threads=False
    )
    skip, rows = piece.skip, piece.rows
    for batch in batches:
        part = batch.slice(min(skip, len(batch)), rows)
        skip -= len(batch) - len(part) if skip else 0
        rows -= len(part)
        yield part
        if not rows:
            break


def _fault(what: str, name: str, error: Exception) -> ValueError:
    """The error about a file that pyarrow cannot read, in one line."""
    reason = " ".join(str(error).split())
    if "crypt" in reason:
        return ValueError(f"{name} is encrypted: write it without encryption. ({reason})")
    return ValueError(f"{what}: {reason}")


@contextmanager
def _reading_text(name: str, column: str, row: int) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}: the column {column!r} has text that is not UTF-8, in row {row} or soon after "
            f"it: {error}"
        ) from None


def _class_names(name: str, schema: "pa.Schema", column: str) -> Sequence[str] | None:
    """The names of a column's numbers, where the Hugging Face `datasets` library wrote them."""
    try:
        written = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        feature = written.get("info", {}).get("features", {}).get(column, {})
        names: Sequence[str] | None = feature.get("names")
        whole = names is None or (
            isinstance(names, list) and all(isinstance(each, str) for each in names)
        )
    except (ValueError, AttributeError):
        whole = False
    if not whole:
        raise ValueError(
            f"{name}: the metadata `huggingface`, which names the classes of the column "
            f"{column!r}, is damaged. Write the file again."
        )
    return names


def _label(value: str | int | None, names: Sequence[str] | None) -> str | None:
    if names is None or not isinstance(value, int):
        return None if value is None else str(value)
    if value == -1:  # `datasets` writes a missing label so
        return None
    return names[value] if 0 <= value < len(names) else str(value)


def _path_and_bytes(images: "pa.Array") -> Iterator[tuple[str | None, bytes]]:
    """The path, if there is one, and the encoded bytes of each image in a column."""
    import pyarrow.types as is_type

    if not is_type.is_struct(images.type):
        return ((None, data or b"") for data in images.to_pylist())
    # Column by column: a struct as a dict takes several times as long. Where the struct itself is
    # missing, `flatten` makes its fields missing too.
    fields = dict(zip((field.name for field in images.type), images.flatten(), strict=True))
    encoded = fields["bytes"].to_pylist()
    paths = fields["path"].to_pylist() if "path" in fields else [None] * len(encoded)
    return ((path, data or b"") for path, data in zip(paths, encoded, strict=True))


def _holds_images(kind: "pa.DataType") -> bool:
    import pyarrow.types as is_type

    if is_type.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        path = fields.get("path")
        return (
            len(fields) == kind.num_fields
            and "bytes" in fields
            and _is_bytes(fields["bytes"])
            and (path is None or is_type.is_null(path) or _is_text(path))
        )
    return _is_bytes(kind)


def _is_bytes(kind: "pa.DataType") -> bool:
    import pyarrow.types as is_type

    return bool(
        is_type.is_binary(kind) or is_type.is_large_binary(kind) or is_type.is_binary_view(kind)
    )


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow.types as is_type

    if is_type.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        is_type.is_string(kind) or is_type.is_large_string(kind) or is_type.is_string_view(kind)
    )


def _holds_labels(kind: "pa.DataType") -> bool:
    import pyarrow.types as is_type

    if is_type.is_dictionary(kind):
        kind = kind.value_type
    return _is_text(kind) or bool(is_type.is_integer(kind))
