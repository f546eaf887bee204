"""Reads the raw images of a pulled version of the data, in units for tasks on any machine.

Three formats are read: `parquet_files.py`, `class_folders.py` and `tar_files.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from retrain.store import Artifact

# The reader of each format. One is imported, by its name, so that the code of the other does not
# belong to a step's.
READERS = {
    "parquet": "tasks.data.parquet_files",
    "folders": "tasks.data.class_folders",
    "webdataset": "tasks.data.tar_files",
}

# This many units spread well over a cluster. A unit with fewer images and less work is not worth a
# task; with more images, a task would need more memory, and lose more work if it is killed.
UNITS = 256
WORTH_ROWS = 1000
WORTH_SECONDS = 0.5
MAX_UNIT_ROWS = 16_384

# What it costs one core to read, decode and resize an image, roughly: a part for each image and one
# for each encoded byte. Measured with JPEGs of 32 x 32 (70 µs) and 1,500 x 1,000 (6.5 ms).
SECONDS_PER_IMAGE = 50e-6
SECONDS_PER_BYTE = 20e-9


@dataclass(frozen=True, slots=True)
class Piece:
    """Images that follow each other in a file.

    Attributes:
        file: Relative to the data, with `/`.
        first: The number of the first image: a row of a Parquet file, a sample of a tar file; 0 in
            an image file.
        rows: How many images it holds.
    """

    file: str
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class Unit:
    """The images that one task reads.

    Attributes:
        rows: How many images it holds.
        bytes: Their size when encoded, roughly.
        pieces: Where they are, in order of the files' names and of the rows in them.
    """

    rows: int
    bytes: int
    pieces: tuple[Piece, ...] = ()

    @property
    def seconds(self) -> float:
        """How many seconds of a core it takes, roughly."""
        return self.rows * SECONDS_PER_IMAGE + self.bytes * SECONDS_PER_BYTE

    @property
    def tasks(self) -> float:
        """How many tasks it is worth, or which fraction of one."""
        return max(self.rows / WORTH_ROWS, self.seconds / WORTH_SECONDS)


@dataclass(frozen=True)
class RawImage:
    """One image as the data has it.

    Attributes:
        file: The file that holds it, relative to the data, with `/`.
        row: The row in that file, from 0; 0 for an image file.
        path: Its name in reports: the path in its row, else `file` or `file:row`.
        label: The name of its class, or None.
        split: `train`, `val` or `test`; None when the data's names define no splits.
        data: The encoded image; empty when there is none.
    """

    file: str
    row: int
    path: str
    label: str | None
    split: str | None
    data: bytes


class Columns(Protocol):
    """Which columns of Parquet files are read; the section `data` of a workload says it."""

    @property
    def image_column(self) -> str | None:
        """The column with the images; None if it has a usual name."""

    @property
    def label_column(self) -> str | None:
        """The column with their classes; None if it has a usual name."""


class Reader(Protocol):
    """How one format is read; cheap to send to a Ray task."""

    def parts(self) -> Iterator[Unit]:
        """The images, in order of the files' names and of the rows in them, in small parts.

        Raises:
            ValueError: The files do not have the expected form.
        """

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of joined parts, in order; a few are in memory at a time.

        Raises:
            ValueError: A file is broken.
        """


@dataclass(frozen=True)
class RawDataset:
    """The images of a pulled version of the data; cheap to send to a worker of Ray.

    Attributes:
        format: `parquet`, `folders` or `webdataset`.
        reader: Of that format.
    """

    format: str
    reader: Reader

    def units(self) -> list[Unit]:
        """Cuts the data into units, in order of the files' names and of the rows in them.

        Raises:
            ValueError: There is nothing to read, a Parquet file lacks a column, or only some
                files belong to a split.
        """
        parts = list(self.reader.parts())
        if not any(part.rows for part in parts):
            raise ValueError(f"There are no images in data.path, read as {self.format}.")
        return list(group(parts, max(1.0, sum(part.tasks for part in parts) / UNITS)))

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit, in order; a few are in memory at a time.

        Raises:
            ValueError: A Parquet file is broken.
        """
        return self.reader.read(unit)


def open_raw_dataset(data: "Columns", pulled: "Artifact") -> RawDataset:
    """The images in the output of `pull`."""
    return open_format(pulled.facts["format"], data, pulled.folder)


def open_format(name: str, columns: "Columns", pulled: "Path") -> RawDataset:
    """The images in the folder of an output of `pull`, in a known format."""
    reader: Reader = import_module(READERS[name]).open_reader(columns, pulled / "data")
    return RawDataset(name, reader)


def open_unlabelled(name: str, root: "Path", image_column: str | None) -> Reader:
    """The images in a folder, whose classes nobody knows; folders and names mean no splits.

    Args:
        name: The format.
        root: The folder.
        image_column: The Parquet column with the images; None if it has a usual name.
    """
    reader: Reader = import_module(READERS[name]).open_unlabelled(root, image_column)
    return reader


def group(parts: Iterable[Unit], tasks: float) -> Iterator[Unit]:
    """Joins small parts of the data to units that are worth a number of tasks, in order."""
    some: list[Unit] = []
    size = Unit(0, 0)
    for part in parts:
        if some and (size.tasks >= tasks or size.rows + part.rows > MAX_UNIT_ROWS):
            yield join(some)
            some, size = [], Unit(0, 0)
        some.append(part)
        size = Unit(size.rows + part.rows, size.bytes + part.bytes)
    if some:
        yield join(some)


def join(units: Sequence[Unit]) -> Unit:
    """One unit with the images of several, in order."""
    pieces: list[Piece] = []
    for piece in (piece for unit in units for piece in unit.pieces):
        last = pieces[-1] if pieces else None
        if last and (last.file, last.first + last.rows) == (piece.file, piece.first):
            pieces[-1] = Piece(last.file, last.first, last.rows + piece.rows)
        else:
            pieces.append(piece)
    return Unit(sum(unit.rows for unit in units), sum(unit.bytes for unit in units), tuple(pieces))


def unit_of(images: Iterable[tuple[str, int]]) -> Unit:
    """A unit of certain images.

    Args:
        images: The file and the row of each, in order of the files' names and of the rows.
    """
    return join([Unit(1, 0, (Piece(file, row, 1),)) for file, row in images])
