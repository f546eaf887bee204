"""Reads a folder of images per class, with or without a folder per split above it."""

from collections.abc import Iterator
from functools import cached_property

from tasks.data.listing import has_split_folders, is_no_image, split_of_folder
from tasks.data.raw_dataset import Piece, RawDataset, RawImage, Unit, group


class Images(RawDataset):
    """The images of class folders; without classes, those at any depth."""

    @cached_property
    def _has_splits(self) -> bool:
        return self.labelled and has_split_folders(self.root)

    def holds_images(self, name: str) -> bool:
        """Whether a file is an image, by its name."""
        return not is_no_image(name)

    def split_of(self, name: str) -> str | None:
        """The split that the first folder of a file's name stands for."""
        return split_of_folder(name) if self._has_splits else None

    def label_of(self, name: str) -> str | None:
        """The class folder in a file's name; None where there is none."""
        folders = name.split("/")[:-1][self._has_splits :]
        return folders[0] if folders and self.labelled else None

    def labels(self) -> Iterator[tuple[str | None, str | None]]:
        """The class and the split of each image, without reading it."""
        return ((self.label_of(name), self.split_of(name)) for name, _ in self.image_files())

    def parts(self) -> Iterator[Unit]:
        """The image files, in the smallest units that are worth a task."""
        images = (Unit(1, size, (Piece(name, 0, 1),)) for name, size in self.image_files())
        return group(images, tasks=1)

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit; see `tasks.data.raw_dataset.Reader`."""
        return (self._image(piece.file, self._content(piece.file)) for piece in unit.pieces)

    def _image(self, name: str, content: bytes) -> RawImage:
        return RawImage(name, 0, name, self.label_of(name), self.split_of(name), content)

    def _content(self, name: str) -> bytes:
        with open(f"{self.root}/{name}", "rb", buffering=0) as file:  # noqa: PTH123  half the time
            return file.read()
