"""Reads images that a table lists with their classes; see `listings.py`."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from tasks.data import class_folders, listings
from tasks.data.listing import list_files


class Images(class_folders.Images):
    """The images that a table lists; they are files, as those of class folders are."""

    def holds_images(self, name: str) -> bool:
        """Whether a file is a listed image."""
        return name in self._rows()

    def label_of(self, name: str) -> str | None:
        """The class that is listed for a file."""
        label: str | None = self._rows()[name][listings.LABEL]
        return label

    def split_of(self, name: str) -> str | None:
        """The split that is listed, or that the name of the table or the image's folder means."""
        split: str | None = self._rows()[name][listings.SPLIT]
        return split

    def listed(self) -> pa.Table:
        """The user's own columns, with the images' files as `file_name`.

        Raises:
            ValueError: A column has values of several types.
        """
        try:
            return pa.Table.from_struct_array(pa.array([*self._rows().values()]))
        except pa.ArrowException as error:
            raise ValueError(f"The list of the images: {error}") from None

    def _rows(self) -> Mapping[str, listings.Row]:
        return _read(self.root, self.image_column, self.label_column)


@lru_cache(maxsize=2)
def _read(
    root: Path, image_column: str | None, label_column: str | None
) -> Mapping[str, listings.Row]:
    names = [name for name, _ in list_files(root)]
    return listings.read(root, names, image_column, label_column)
