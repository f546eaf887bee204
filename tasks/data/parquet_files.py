"""Reads Parquet files as the Hugging Face hub has them: a row per image.

The split is in the name of the file or its folder (`train.parquet`,
`data/test-00000-of-00002.parquet`, `validation/part.parquet`).
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.data import raw_dataset
from tasks.data.listing import check_splits, list_files, split_of_parquet
from tasks.data.raw_dataset import Piece, RawImage, Unit

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tasks.data.raw_dataset import Columns

BATCH = 64  # rows that are read at a time
# The types of a column, as pyarrow names them.
BYTES = {"binary", "large_binary", "binary_view"}
TEXT = {"string", "large_string", "string_view"}
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
            with self._open(name) as (parquet, _, _):
                first = 0
                for number in range(parquet.num_row_groups):
                    row_group = parquet.metadata.row_group(number)
                    total = row_group.num_rows
                    # Reading a part also reads the rows before it, so the parts are few.
                    parts = max(1, -(-total // raw_dataset.MAX_UNIT_ROWS))
                    length = max(1, -(-total // parts))
                    for skip in range(0, total, length):
                        rows = min(length, total - skip)
                        size = row_group.total_byte_size * rows // total
                        yield Unit(rows, size, (Piece(name, first + skip, rows),))
                    first += total

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit; see `tasks.data.raw_dataset.Reader`."""
        for name, pieces in groupby(unit.pieces, key=lambda piece: piece.file):
            ranges = (range(piece.first, piece.first + piece.rows) for piece in pieces)
            yield from self._read_file(name, [row for rows in ranges for row in rows])

    def _read_file(self, name: str, rows: Sequence[int]) -> Iterator[RawImage]:
        """The images in some rows of a file, in ascending order."""
        import pyarrow as pa

        split = split_of_parquet(name)
        with self._open(name) as (parquet, image, label):
            names = _class_names(name, parquet.schema_arrow, label) if label else None
            columns = [image, label] if label else [image]
            row = 0
            try:
                for first, numbers, batch in _batches(parquet, rows, columns):
                    row = numbers[0]
                    labels = batch[label].to_pylist() if label else [None] * len(batch)
                    images = list(_path_and_bytes(batch[image]))
                    for row in numbers:
                        path, data = images[row - first]
                        value = _label(labels[row - first], names)
                        yield RawImage(name, row, path or f"{name}:{row}", value, split, data)
            except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
                raise _fault(f"{name} is broken after row {row}", error) from None

    @contextmanager
    def _open(self, name: str) -> "Iterator[tuple[pq.ParquetFile, str, str | None]]":
        """Opens a file, and finds the columns with the images and with their classes.

        Raises:
            ValueError: It cannot be read, or lacks a column of the right type.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # Mapped, because a row group may be larger than the memory.
            parquet = pq.ParquetFile(self.root / name, memory_map=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise _fault(f"{name} is no Parquet file", error) from None
        with parquet:
            schema = parquet.schema_arrow
            setting = self._setting("image_column")
            image = _find_column(name, schema, "image_column", self.image_column, setting)
            if not _holds_images(schema.field(image).type):
                raise ValueError(
                    f"{name}: the column {image!r} is {schema.field(image).type}; an image is its "
                    "encoded bytes (binary), or a struct of `bytes` (binary) and `path` (string). "
                    f"See {setting}."
                )
            if not self.labelled:
                yield parquet, image, None
                return
            setting = self._setting("label_column")
            label = _find_column(name, schema, "label_column", self.label_column, setting)
            if not _holds_labels(schema.field(label).type):
                raise ValueError(
                    f"{name}: the column {label!r} is {schema.field(label).type}; a class is a "
                    f"name or a whole number. See {setting}."
                )
            yield parquet, image, label

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


def _batches(
    parquet: "pq.ParquetFile", rows: Sequence[int], columns: list[str]
) -> Iterator[tuple[int, Sequence[int], "pa.RecordBatch"]]:
    """Reads the row groups of some rows of a file, a few rows at a time.

    Args:
        parquet: The file.
        rows: Their numbers in the file, in ascending order.
        columns: The columns that are read.

    Yields:
        The number of the first row that was read, the numbers of those wanted, and all of them.
    """
    end = 0
    for number in range(parquet.num_row_groups):
        begin, end = end, end + parquet.metadata.row_group(number).num_rows
        left = rows[bisect_left(rows, begin) : bisect_left(rows, end)]
        if not left:
            continue
        for batch in parquet.iter_batches(BATCH, [number], columns, use_threads=False):
            count = bisect_left(left, begin + len(batch))
            numbers, left = left[:count], left[count:]
            if numbers:
                yield begin, numbers, batch
            if not left:
                break
            begin += len(batch)


def _fault(what: str, error: Exception) -> ValueError:
    """The error about a file that pyarrow cannot read, in one line."""
    return ValueError(f"{what}: {' '.join(str(error).split())}")


def _class_names(name: str, schema: "pa.Schema", column: str) -> Sequence[str] | None:
    """The names of a column's numbers, where the Hugging Face `datasets` library wrote them."""
    try:
        written = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        feature = written.get("info", {}).get("features", {}).get(column, {})
        names: Sequence[str] | None = feature.get("names")
    except (ValueError, AttributeError):
        raise ValueError(
            f"{name}: the metadata `huggingface`, which names the classes of the column "
            f"{column!r}, is damaged. Write the file again."
        ) from None
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
        return any(field.name == "bytes" and str(field.type) in BYTES for field in kind)
    return str(kind) in BYTES


def _holds_labels(kind: "pa.DataType") -> bool:
    import pyarrow.types as is_type

    if is_type.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in TEXT or bool(is_type.is_integer(kind))
