"""Reads a folder of images per class, with or without a folder per split above it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.data.listing import (
    check_splits,
    has_split_folders,
    is_no_image,
    list_files,
    split_of_folder,
)
from tasks.data.raw_dataset import Piece, RawImage, Unit, group

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
        files: Iterator[tuple[str, int]]
        files = (file for file in list_files(self.root) if not is_no_image(file[0]))
        if self.split_folders:
            files = check_splits(files, split_of_folder)
        return group((Unit(1, size, (Piece(name, 0, 1),)) for name, size in files), tasks=1)

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit; see `tasks.data.raw_dataset.Reader`."""
        return (self._read_file(piece.file) for piece in unit.pieces)

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
