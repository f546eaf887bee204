"""Reads a folder of images per class, with or without a folder per split above it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.data.listing import (
    check_splits,
    has_split_folders,
    list_files,
    only_images,
    split_of_folder,
)
from tasks.data.raw_dataset import RawImage, Unit

if TYPE_CHECKING:
    from tasks.data.raw_dataset import Columns


@dataclass(frozen=True)
class ClassFolders:
    """The class folders in a folder.

    Attributes:
        root: The folder that the files' names are relative to.
        split_folders: Whether the class folders lie in folders named as splits.
    """

    root: Path
    split_folders: bool

    def parts(self) -> Iterator[Unit]:
        """The image files, in the smallest units that are worth a task."""
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

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit; see `tasks.data.raw_dataset.Reader`."""
        for name in unit.files.split("\0")[:-1]:
            yield self._read_file(name)

    def unit_of(self, images: Sequence[tuple[str, int]]) -> Unit:
        """A unit with certain images; see `tasks.data.raw_dataset.Reader`."""
        return Unit(len(images), 0, files="".join(f"{file}\0" for file, _ in images))

    def _read_file(self, name: str) -> RawImage:
        folders = name.split("/")[:-1]
        split = split_of_folder(folders.pop(0)) if self.split_folders else None
        label = folders[0] if folders else None
        with open(f"{self.root}/{name}", "rb", buffering=0) as file:  # noqa: PTH123  half the time
            data = file.read()
        return RawImage(name, 0, name, label, split, data)


def open_reader(data: "Columns", root: Path) -> ClassFolders:
    """The class folders in a folder."""
    return ClassFolders(root, has_split_folders(root))


def open_unlabelled(root: Path, image_column: str | None) -> ClassFolders:
    """The images in a folder and the folders below it, whatever these are named."""
    return ClassFolders(root, split_folders=False)


def _of_files(files: Sequence[tuple[str, int]], size: int) -> Unit:
    return Unit(len(files), size, files="".join(f"{name}\0" for name, _ in files))
