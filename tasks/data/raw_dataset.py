"""Reading the raw images of a pulled version of the data, in units that can be worked on anywhere.

Two layouts are read. Parquet files as the Hugging Face hub has them: a row per image, with the
split in the name of the file or its folder (`train.parquet`, `data/test-00000-of-00002.parquet`,
`validation/part.parquet`). And a folder per class, with or without a folder per split above it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.data.listing import (
    ALIASES,
    check_splits,
    list_files,
    only_images,
    split_of_folder,
    split_of_parquet,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from retrain.store import Artifact
    from retrain.workload import Data

SPLITS = ("train", "val", "test")

# As many units as this spread well over a cluster. A unit of fewer images, and of less work, is not
# worth a task; with more images, the memory and the lost work of a task that is killed would grow.
UNITS = 256
WORTH_ROWS = 1000
WORTH_SECONDS = 0.5
MAX_UNIT_ROWS = 16_384

# What it costs one core to read, decode and resize an image, roughly: so much for each, and so much
# for each encoded byte. Measured with JPEGs of 32 x 32 (70 µs) and 1,500 x 1,000 (6.5 ms).
SECONDS_PER_IMAGE = 50e-6
SECONDS_PER_BYTE = 20e-9


@dataclass(frozen=True, slots=True)
class Piece:
    """A Parquet file's row group, or a part of a very long one.

    Attributes:
        file: Relative to the data, with `/`.
        row_group: Its number.
        first_row: The file's row that it begins with.
        skip: How many rows of the row group lie before that.
        rows: How many images it holds.
    """

    file: str
    row_group: int
    first_row: int
    skip: int
    rows: int


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task reads.

    Attributes:
        rows: How many images it holds.
        bytes: Encoded, about.
        pieces: Of Parquet files.
        files: Of class folders: the names with a NUL after each. As strings of their own, the names
            of a million images would take 100 MB more.
    """

    rows: int
    bytes: int
    pieces: tuple[Piece, ...] = ()
    files: str = ""

    @property
    def seconds(self) -> float:
        """How long one core is busy with it, roughly."""
        return self.rows * SECONDS_PER_IMAGE + self.bytes * SECONDS_PER_BYTE

    @property
    def tasks(self) -> float:
        """How many tasks it is worth, or which part of one."""
        return max(self.rows / WORTH_ROWS, self.seconds / WORTH_SECONDS)


@dataclass(frozen=True)
class RawImage:
    """One image as the data has it.

    Attributes:
        file: The file that holds it, relative to the data, with `/`.
        row: The row in that file, from 0; 0 for an image file.
        path: What to call it: the path that its row gives, else `file` or `file:row`.
        label: The name of its class, or None.
        split: `train`, `val` or `test`; None when the data's names tell no splits.
        data: The encoded image; empty when there is none.
    """

    file: str
    row: int
    path: str
    label: str | None
    split: str | None
    data: bytes


@dataclass(frozen=True)
class RawDataset:
    """The images of a pulled version of the data; cheap to send to a worker of Ray.

    Attributes:
        root: The folder that the files' names are relative to.
        format: `parquet` or `folders`.
        image_column: Of Parquet files.
        label_column: Of Parquet files.
        split_folders: Whether the class folders lie in folders named as splits.
    """

    root: Path
    format: str
    image_column: str
    label_column: str
    split_folders: bool

    def units(self) -> list[Unit]:
        """Cuts the data into units, in order of the files' names and of the rows in them.

        Raises:
            ValueError: There is nothing to read, a Parquet file has not the columns, or only some
                files belong to a split.
        """
        parts = list(self._row_groups() if self.format == "parquet" else self._image_files())
        if not any(part.rows for part in parts):
            raise ValueError(f"There are no images in data.path, read as {self.format}.")
        enough = max(1.0, sum(part.tasks for part in parts) / UNITS)
        units: list[list[Unit]] = [[]]
        size = Unit(0, 0)
        for part in parts:
            if units[-1] and (size.tasks >= enough or size.rows + part.rows > MAX_UNIT_ROWS):
                units.append([])
                size = Unit(0, 0)
            units[-1].append(part)
            size = Unit(size.rows + part.rows, size.bytes + part.bytes)
        return [_join(unit) for unit in units]

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit, in order; a few are in memory at a time.

        Raises:
            ValueError: A Parquet file is broken.
        """
        for name, pieces in groupby(unit.pieces, key=lambda piece: piece.file):
            yield from self._read_parquet(name, pieces)
        for name in unit.files.split("\0")[:-1]:
            yield self._read_file(name)

    def _row_groups(self) -> Iterator[Unit]:
        """The row groups; of one that would be too much for a task, parts."""
        files = (file for file in list_files(self.root) if file[0].endswith(".parquet"))
        for name, _ in list(check_splits(files, split_of_parquet)):
            with self._open_parquet(name) as parquet:
                begin = 0
                for number in range(parquet.num_row_groups):
                    row_group = parquet.metadata.row_group(number)
                    total = row_group.num_rows
                    # To read a part is to read what lies before it too, so they are few.
                    length = math.ceil(total / max(1, math.ceil(total / MAX_UNIT_ROWS)))
                    for skip in range(0, total, length or 1):
                        rows = min(length, total - skip)
                        piece = Piece(name, number, begin + skip, skip, rows)
                        size = row_group.total_byte_size * rows // total
                        yield Unit(rows, size, pieces=(piece,))
                    begin += total

    def _image_files(self) -> Iterator[Unit]:
        """The image files, by as many as make the smallest unit."""
        files = only_images(list_files(self.root))
        if self.split_folders:
            files = check_splits(files, split_of_folder)
        some: list[tuple[str, int]] = []
        size = 0
        for name, length in files:
            some.append((name, length))
            size += length
            if Unit(len(some), size).tasks >= 1:
                yield _of_files(some, size)
                some, size = [], 0
        if some:
            yield _of_files(some, size)

    def _read_file(self, name: str) -> RawImage:
        folders = name.split("/")[:-1]
        split = split_of_folder(folders.pop(0)) if self.split_folders else None
        label = folders[0] if folders else None
        with open(f"{self.root}/{name}", "rb", buffering=0) as file:  # noqa: PTH123  half the time
            data = file.read()
        return RawImage(name, 0, name, label, split, data)

    def _read_parquet(self, name: str, pieces: Iterable[Piece]) -> Iterator[RawImage]:
        import pyarrow as pa

        split = split_of_parquet(name)
        with self._open_parquet(name) as parquet:
            names = _class_names(parquet.schema_arrow, self.label_column)
            for piece in pieces:
                row = piece.first_row
                try:
                    for batch in self._read_rows(parquet, piece):
                        images = _path_and_bytes(batch[self.image_column])
                        labels = batch[self.label_column].to_pylist()
                        for (path, data), label in zip(images, labels, strict=True):
                            path = path or f"{name}:{row}"
                            yield RawImage(name, row, path, _label(label, names), split, data)
                            row += 1
                except (pa.ArrowInvalid, OSError) as error:
                    raise ValueError(f"{name} is broken after row {row}: {error}") from None

    def _read_rows(self, parquet: "pq.ParquetFile", piece: Piece) -> Iterator["pa.RecordBatch"]:
        batches = parquet.iter_batches(
            batch_size=64,
            row_groups=[piece.row_group],
            columns=[self.image_column, self.label_column],
            use_threads=False,
        )
        skip, rows = piece.skip, piece.rows
        for batch in batches:
            part = batch.slice(min(skip, len(batch)), rows)
            skip -= len(batch) - len(part) if skip else 0
            rows -= len(part)
            yield part
            if not rows:
                break

    def _open_parquet(self, name: str) -> "pq.ParquetFile":
        """Opens a file that has the columns, with the right types."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # Mapped, because a row group may be larger than the memory.
            parquet = pq.ParquetFile(self.root / name, memory_map=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{name} is no Parquet file: {error}") from None
        schema = parquet.schema_arrow
        for key in ("image_column", "label_column"):
            column = getattr(self, key)
            if column not in schema.names:
                raise ValueError(
                    f"{name} has no column {column!r}, but {', '.join(schema.names)}: "
                    f"set data.{key} to one of them."
                )
        image, label = schema.field(self.image_column).type, schema.field(self.label_column).type
        if not _holds_images(image):
            raise ValueError(
                f"{name}: the column {self.image_column!r} is {image}; an image is its encoded "
                "bytes (binary), or a struct of `bytes` and `path`. See data.image_column."
            )
        if not _holds_labels(label):
            raise ValueError(
                f"{name}: the column {self.label_column!r} is {label}; a class is a name or a "
                "whole number. See data.label_column."
            )
        return parquet


def open_raw_dataset(data: "Data", pulled: "Artifact") -> RawDataset:
    """The images in the output of `pull`."""
    root = pulled.folder / "data"
    split_folders = any(
        folder.name.lower() in ALIASES and any(below.is_dir() for below in folder.iterdir())
        for folder in root.iterdir()
        if folder.is_dir()
    )
    return RawDataset(
        root, pulled.facts["format"], data.image_column, data.label_column, split_folders
    )


def _of_files(files: Sequence[tuple[str, int]], size: int) -> Unit:
    return Unit(len(files), size, files="".join(f"{name}\0" for name, _ in files))


def _join(units: Sequence[Unit]) -> Unit:
    return Unit(
        sum(unit.rows for unit in units),
        sum(unit.bytes for unit in units),
        tuple(piece for unit in units for piece in unit.pieces),
        "".join(unit.files for unit in units),
    )


def _class_names(schema: "pa.Schema", column: str) -> Sequence[str] | None:
    """The names of a column's numbers, where the Hugging Face `datasets` library wrote them."""
    written = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    feature = written.get("info", {}).get("features", {}).get(column, {})
    names: Sequence[str] | None = feature.get("names")
    return names


def _label(value: str | int | None, names: Sequence[str] | None) -> str | None:
    if names is None or not isinstance(value, int):
        return None if value is None else str(value)
    if value == -1:  # how `datasets` writes that there is none
        return None
    return names[value] if 0 <= value < len(names) else str(value)


def _path_and_bytes(images: "pa.Array") -> Iterator[tuple[str | None, bytes]]:
    """What a column of images holds: the path, where it has one, and the encoded bytes."""
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
        return kind.get_field_index("bytes") >= 0 and _holds_images(kind.field("bytes").type)
    return bool(
        is_type.is_binary(kind) or is_type.is_large_binary(kind) or is_type.is_binary_view(kind)
    )


def _holds_labels(kind: "pa.DataType") -> bool:
    import pyarrow.types as is_type

    if is_type.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        is_type.is_integer(kind)
        or is_type.is_string(kind)
        or is_type.is_large_string(kind)
        or is_type.is_string_view(kind)
    )
