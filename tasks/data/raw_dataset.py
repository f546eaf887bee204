"""Reads the raw images of a pulled version of the data, in units for tasks on any machine.

Three kinds are read: `parquet_files.py`, `class_folders.py`, and what a table lists,
`listed_images.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from retrain.store import Artifact
from retrain.workload import Data
from tasks.data.listing import list_files

# The module of each format, whose class `Images` reads it. One is imported, by its name, so that
# the code of the others does not belong to a step's.
READERS = {
    "parquet": "tasks.data.parquet_files",
    "folders": "tasks.data.class_folders",
    "table": "tasks.data.listed_images",
}

# Large data has at most about so many units. Smaller units than of so many images and so much work
# would cost more in files than in work; with more images, a task would need more memory, and lose
# more work if it is killed.
UNITS = 1024
WORTH_ROWS = 128
WORTH_SECONDS = 1 / 16
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
        first: The number of the first image: a row of a Parquet file; 0 in an image file.
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
        pieces: The places of the images, in order of the files' names and of the rows in them.
    """

    rows: int
    bytes: int
    pieces: Sequence[Piece] = ()

    @property
    def seconds(self) -> float:
        """The seconds that one core needs for the unit, roughly."""
        return self.rows * SECONDS_PER_IMAGE + self.bytes * SECONDS_PER_BYTE

    @property
    def tasks(self) -> float:
        """The number of tasks that the unit is worth, or the fraction of one."""
        return max(self.rows / WORTH_ROWS, self.seconds / WORTH_SECONDS)


@dataclass(frozen=True)
class RawImage:
    """One image as the data has it.

    Attributes:
        file: The file that holds it, relative to the data, with `/`.
        row: The row in that file, from 0; 0 for an image file.
        path: The name of the image in reports: the path in its row, else `file` or `file:row`.
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


class Reader(Protocol):
    """Reads images in parts; an object of this kind is cheap to send to a worker of Ray."""

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
class RawDataset(Reader, ABC):
    """The images of a folder, in one of the formats; a `Reader`.

    Attributes:
        format: A key of `READERS`.
        root: The folder.
        image_column: The column with the images or their paths; None if it has a usual name.
        label_column: The column with their classes; None if it has a usual name.
        labelled: Whether the images have classes, and the names mean splits.
    """

    format: str
    root: Path
    image_column: str | None = None
    label_column: str | None = None
    labelled: bool = True

    @abstractmethod
    def holds_images(self, name: str) -> bool:
        """Whether a file has images, or is one, by its name."""

    @abstractmethod
    def split_of(self, name: str) -> str | None:
        """The split that a file's name stands for; None where it stands for none."""

    def image_files(self) -> Iterator[tuple[str, int]]:
        """The files with images, and their sizes in bytes, in order of the names.

        Raises:
            ValueError: Only some of them belong to a split; raised at the end.
        """
        with_split, without = 0, ""
        for name, size in list_files(self.root):
            if self.holds_images(name):
                if self.split_of(name):
                    with_split += 1
                else:
                    without = without or name
                yield name, size
        if with_split and without:
            raise ValueError(
                f"{without} belongs to no split, as {with_split} other files do: "
                "name it for one (train, val, test), or none."
            )

    def labels(self) -> Iterator[tuple[str | None, str | None]]:
        """The class and the split of each image, in order."""
        return ((raw.label, raw.split) for part in self.parts() for raw in self.read(part))

    def listed(self) -> pa.Table | None:
        """The user's own columns, with the files as `file_name`, where a file lists the images."""
        return None

    def units(self) -> list[Unit]:
        """Cuts the data into units, in order of the files' names and of the rows in them.

        Raises:
            ValueError: There is nothing to read, a Parquet file lacks a column, or only some
                files belong to a split.
        """
        parts = list(self.parts())
        if not any(part.rows for part in parts):
            raise ValueError(f"There are no images in data.path, read as {self.format}.")
        return list(group(parts, max(1, sum(part.tasks for part in parts) / UNITS)))


def open_raw_dataset(data: Data, pulled: Artifact) -> RawDataset:
    """The images in the output of `pull`."""
    return open_pulled(pulled, data.image_column, data.label_column)


def open_pulled(
    pulled: Artifact, image_column: str | None = None, label_column: str | None = None
) -> RawDataset:
    """The images in the output of `pull`, with certain columns; see `RawDataset`."""
    return open_format(pulled.facts["format"], pulled.folder / "data", image_column, label_column)


def open_format(
    name: str,
    root: Path,
    image_column: str | None = None,
    label_column: str | None = None,
    labelled: bool = True,
) -> RawDataset:
    """The images in a folder, in a known format; see `RawDataset`."""
    module: Any = import_module(READERS[name])
    opened: RawDataset = module.Images(name, root, image_column, label_column, labelled)
    return opened


def group(parts: Iterable[Unit], tasks: float) -> Iterator[Unit]:
    """Joins small parts of the data, in order, to units that are worth some tasks."""
    pending: list[Unit] = []
    for part in parts:
        if pending and sum(each.rows for each in pending) + part.rows > MAX_UNIT_ROWS:
            yield _join(pending)
            pending = []
        pending.append(part)
        if sum(each.tasks for each in pending) >= tasks:
            yield _join(pending)
            pending = []
    if pending:
        yield _join(pending)


def _join(units: Sequence[Unit]) -> Unit:
    pieces = tuple(piece for unit in units for piece in unit.pieces)
    return Unit(sum(unit.rows for unit in units), sum(unit.bytes for unit in units), pieces)


def unit_of(images: Iterable[tuple[str, int]]) -> Unit:
    """A unit of certain images.

    Args:
        images: The file and the row of each, in order of the files' names and of the rows.
    """
    return _join([Unit(1, 0, (Piece(file, row, 1),)) for file, row in images])
