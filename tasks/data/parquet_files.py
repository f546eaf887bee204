"""Reads Parquet files as the Hugging Face hub has them: a row per image.

The split is in the name of the file or its folder (`train.parquet`,
`data/test-00000-of-00002.parquet`, `validation/part.parquet`).
"""

import json
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as is_type

from tasks.data import raw_dataset
from tasks.data.listing import split_of_parquet
from tasks.data.raw_dataset import Piece, RawDataset, RawImage, Unit

BATCH = 64  # rows that are read at a time
# The types of a column, as pyarrow names them.
BYTES = {"binary", "large_binary", "binary_view"}
TEXT = {"string", "large_string", "string_view"}
# Names of the columns in data sets of the hub, the usual one first.
USUAL = {"image_column": ("image", "img"), "label_column": ("label", "labels")}
FORMS = {
    "image_column": (
        "an image is its encoded bytes (binary), or a struct of `bytes` (binary) and `path` "
        "(string)"
    ),
    "label_column": "a class is a name or a whole number",
}


class Images(RawDataset):
    """The images in the Parquet files of a folder."""

    def holds_images(self, name: str) -> bool:
        """Whether it is a Parquet file."""
        return name.endswith(".parquet")

    def split_of(self, name: str) -> str | None:
        """The split in a file's name, else in that of the nearest folder that has one."""
        return split_of_parquet(name) if self.labelled else None

    def parts(self) -> Iterator[Unit]:
        """The images of all files; see `tasks.data.raw_dataset.Reader`."""
        return chain.from_iterable(self._parts_of(name) for name, _ in self.image_files())

    def _parts_of(self, name: str) -> Iterator[Unit]:
        """The row groups of a file; one that is too large for a task is divided."""
        most = raw_dataset.MAX_UNIT_ROWS
        with self._open(name) as parquet:
            self._columns(name, parquet.schema_arrow)
            begin = 0
            for number in range(parquet.num_row_groups):
                row_group = parquet.metadata.row_group(number)
                end = begin + row_group.num_rows
                for first in range(begin, end, most):
                    rows = min(most, end - first)
                    size = row_group.total_byte_size * rows // row_group.num_rows
                    yield Unit(rows, size, (Piece(name, first, rows),))
                begin = end

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit; see `tasks.data.raw_dataset.Reader`."""
        for name, pieces in groupby(unit.pieces, key=attrgetter("file")):
            ranges = (range(piece.first, piece.first + piece.rows) for piece in pieces)
            try:
                yield from self._read_file(name, [row for rows in ranges for row in rows])
            except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
                raise _fault(f"{name} is broken", error) from None

    def _read_file(self, name: str, rows: Sequence[int]) -> Iterator[RawImage]:
        """The images in some rows of a file, in ascending order."""
        split = self.split_of(name)
        with self._open(name) as parquet:
            columns = self._columns(name, parquet.schema_arrow)
            names = _class_names(parquet.schema_arrow, columns[1]) if self.labelled else None
            for first, numbers, batch in _batches(parquet, rows, columns):
                images = _paths_and_bytes(batch[columns[0]])
                labels = batch[columns[1]].to_pylist() if self.labelled else [None] * len(batch)
                for row in numbers:
                    path, data = images[row - first]
                    label = _label(labels[row - first], names)
                    yield RawImage(name, row, path or f"{name}:{row}", label, split, data or b"")

    def _open(self, name: str) -> pq.ParquetFile:
        path = self.root / name
        try:
            # Mapped, because a row group may be larger than the memory.
            return pq.ParquetFile(path, memory_map=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise _fault(f"{name} is no Parquet file", error) from None

    def _columns(self, name: str, schema: pa.Schema) -> list[str]:
        """The column with the images and, if they have classes, that with these.

        Raises:
            ValueError: There is none of the right type.
        """
        return [self._column(name, schema, key) for key in list(USUAL)[: 1 + self.labelled]]

    def _column(self, name: str, schema: pa.Schema, key: str) -> str:
        configured = getattr(self, key)
        setting = f"data.{key}" if self.labelled else f"--{key.replace('_', '-')}"
        names = (configured,) if configured else USUAL[key]
        column = next((column for column in names if column in schema.names), None)
        if column is None:
            raise ValueError(
                f"{name} has no column {' or '.join(map(repr, names))}, but "
                f"{', '.join(schema.names)}: set {setting} to one of them."
            )
        kind = schema.field(column).type
        if not (_holds_images(kind) if key == "image_column" else _holds_labels(kind)):
            raise ValueError(
                f"{name}: the column {column!r} is {kind}; {FORMS[key]}. See {setting}."
            )
        return column


def _batches(
    parquet: pq.ParquetFile, rows: Sequence[int], columns: list[str]
) -> Iterator[tuple[int, list[int], pa.RecordBatch]]:
    """Reads some rows of a file, a few at a time, from the row groups that have one of them.

    Args:
        parquet: The file.
        rows: Their numbers in the file, in ascending order.
        columns: The columns that are read.

    Yields:
        The number of the first row that was read, the numbers of those wanted, and all of them.
    """
    row_numbers = np.asarray(rows)
    end = 0
    for number in range(parquet.num_row_groups):
        first, end = end, end + parquet.metadata.row_group(number).num_rows
        if not ((row_numbers >= first) & (row_numbers < end)).any():
            continue
        for batch in parquet.iter_batches(BATCH, [number], columns, use_threads=False):
            numbers = row_numbers[(row_numbers >= first) & (row_numbers < first + len(batch))]
            if len(numbers):
                yield first, numbers.tolist(), batch
            first += len(batch)
            if first > row_numbers[-1]:
                return


def _fault(problem: str, error: Exception) -> ValueError:
    """The error about a file that pyarrow cannot read, in one line."""
    return ValueError(f"{problem}: {' '.join(str(error).split())}")


def _class_names(schema: pa.Schema, column: str) -> Sequence[str] | None:
    """The names of a column's numbers, where the Hugging Face `datasets` library wrote them."""
    description = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names: Sequence[str] | None
    names = description.get("info", {}).get("features", {}).get(column, {}).get("names")
    return names


def _label(value: str | int | None, names: Sequence[str] | None) -> str | None:
    if names is None or not isinstance(value, int):
        return None if value is None else str(value)
    if value == -1:  # `datasets` writes a missing label so
        return None
    return names[value] if 0 <= value < len(names) else str(value)


def _paths_and_bytes(images: pa.Array) -> list[tuple[str | None, bytes | None]]:
    """The path and the encoded bytes of each image in a column, where there are any."""
    nothing = [None] * len(images)
    if not is_type.is_struct(images.type):
        return list(zip(nothing, images.to_pylist(), strict=True))
    # Column by column: a struct as a dict takes several times as long. Where the struct itself is
    # missing, `flatten` makes its fields missing too.
    fields = dict(zip((field.name for field in images.type), images.flatten(), strict=True))
    paths = fields["path"].to_pylist() if "path" in fields else nothing
    return list(zip(paths, fields["bytes"].to_pylist(), strict=True))


def _holds_images(kind: pa.DataType) -> bool:

    if is_type.is_struct(kind):
        return any(field.name == "bytes" and str(field.type) in BYTES for field in kind)
    return str(kind) in BYTES


def _holds_labels(kind: pa.DataType) -> bool:

    if is_type.is_dictionary(kind):
        kind = kind.value_type
    return str(kind) in TEXT or bool(is_type.is_integer(kind))
