"""Reads the images to classify: folders at any depth, or Parquet files.

The images need no classes, and the names of files and folders do not define splits.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from retrain.digests import digest_of
from retrain.errors import UsageError
from tasks.data.index import Images, list_unlabelled
from tasks.data.units import Unit, cut

TASKS = 8.0  # that a unit is worth: a network answers many images at once


@dataclass(frozen=True)
class Source:
    """The images that are classified; cheap to send to a worker of Ray.

    Attributes:
        images: Where they are, and how they are called.
        state: Another text after a file of the input has changed, as `_state_of`
            gives it; empty for images of the store, which do not change.
    """

    images: Images
    state: str = ""

    def units(self) -> list[Unit]:
        """The images in units that are worth a task each, in order of the files' names and rows.

        Raises:
            ValueError: A file cannot be read.
        """
        return cut(self.images.files, self.images.places, self.images.sizes, TASKS)


@dataclass(frozen=True, slots=True)
class Image:
    """An image as the input has it.

    Attributes:
        path: The file's name relative to the input; of a row the path in it, else `file#row`.
        sha256: SHA-256 (hex) of the encoded image; None if its file cannot be read.
        data: The encoded image; empty when there is none.
        error: Why its file cannot be read; None if it can.
    """

    path: str
    sha256: str | None
    data: bytes
    error: str | None = None


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
        found = list_unlabelled(root, image_column)
    except ValueError as error:
        raise UsageError(f"--input {place}: {error}") from None
    if not found.places and found.files.image_column is None:
        raise UsageError(
            f"--input {place}: holds no images: name a folder with images or Parquet files, or one "
            "such file."
        )
    return Source(found, _state_of(root))


def _state_of(root: Path) -> str:
    """SHA-256 (hex) over the paths, inodes, sizes and times of change of all files of a folder."""
    stats = {str(path): path.stat() for path in sorted(root.rglob("*")) if path.is_file()}
    state = [(path, st.st_ino, st.st_size, st.st_mtime_ns) for path, st in stats.items()]
    return digest_of(state)


def read(source: Source, unit: Unit) -> Iterator[Image]:
    """The images of a unit, in order; a few are in memory at a time.

    Raises:
        ValueError: A Parquet file is broken.
    """
    some = slice(unit.first, unit.first + unit.rows)
    images = source.images
    named = zip(images.places[some], images.paths[some], strict=True)
    if images.files.image_column is not None:
        encoded = images.files.read(images.places[some])
        for data, ((file, row), path) in zip(encoded, named, strict=True):
            name = _text(path if path != f"{file}:{row}" else f"{file}#{row}")
            yield Image(name, hashlib.sha256(data).hexdigest(), data)
        return
    for place, path in named:
        try:
            [data] = images.files.read([place])
        except OSError as error:  # one file that cannot be read does not stop the others
            yield Image(_text(path), None, b"", error.strerror or str(error))
        else:
            yield Image(_text(path), hashlib.sha256(data).hexdigest(), data)


def _text(name: str) -> str:
    """A file's name as text that can be stored: it may be no UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def digest_of_images(rows: pa.Table | pa.RecordBatch) -> bytes:
    """The bytes of successive images for the digest of an input: their paths and SHA-256."""
    images = zip(rows["path"].to_pylist(), rows["sha256"].to_pylist(), strict=True)
    return "".join(f"{path}\0{sha256}\n" for path, sha256 in images).encode()
