"""Lists the images to classify: folders at any depth, or Parquet files.

The images need no classes, and the names of files and folders do not define splits.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from retrain.digests import digest_of
from retrain.errors import UsageError
from tasks.data.index import list_unlabelled
from tasks.data.reading import ImageFiles, Place


@dataclass(frozen=True)
class Source:
    """The images that are classified.

    Attributes:
        files: Reads the images.
        places: Where they are.
        paths: Of each the file's name relative to the input; of a row of a Parquet file the path in
            it, else `file#row`.
    """

    files: ImageFiles
    places: Sequence[Place]
    paths: Sequence[str]

    def state(self) -> str:
        """Another text after a file of the input has changed."""
        root = self.files.root
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        stats = [(str(path.relative_to(root)), path.stat()) for path in paths]
        return digest_of([(path, st.st_ino, st.st_size, st.st_mtime_ns) for path, st in stats])


def open_source(root: Path, place: str, image_column: str | None) -> Source:
    """Finds out what a folder holds.

    Args:
        root: The folder.
        place: The name of the folder, as the user gave it.
        image_column: The Parquet column with the images; None if it has a usual name.

    Raises:
        UsageError: There are no images, or it is not clear which are meant.
    """
    try:
        files, places, names = list_unlabelled(root, image_column)
    except ValueError as error:
        raise UsageError(f"--input {place}: {error}") from None
    if not places and files.image_column is None:
        raise UsageError(
            f"--input {place}: holds no images: name a folder with images or Parquet files, or one "
            "such file."
        )
    paths = [
        _text(path if path != f"{file}:{row}" else f"{file}#{row}")
        for (file, row), path in zip(places, names, strict=True)
    ]
    return Source(files, places, paths)


def _text(name: str) -> str:
    """A file's name as text that can be stored: it may be no UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def digest_of_images(rows: pa.Table | pa.RecordBatch) -> bytes:
    """The bytes of successive images for the digest of an input: their paths and SHA-256."""
    images = zip(rows["path"].to_pylist(), rows["sha256"].to_pylist(), strict=True)
    return "".join(f"{path}\0{sha256}\n" for path, sha256 in images).encode()
