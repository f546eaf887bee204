"""What is classified: a folder of images at any depth, Parquet files, or tar files of WebDataset.

No classes are asked of the images, and the names of files and folders mean no splits.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from retrain.errors import UsageError
from tasks.data.listing import IMAGE_SUFFIXES, is_no_image, list_files
from tasks.data.raw_dataset import RawImage, Reader, Unit, join, open_unlabelled


@dataclass(frozen=True)
class Source:
    """The images that are classified; cheap to send to a worker of Ray.

    Attributes:
        format: `parquet`, `folders` or `webdataset`.
        reader: Of that format.
    """

    format: str
    reader: Reader

    def units(self) -> list[Unit]:
        """The images in units that are worth a task each, in order of the files' names and rows.

        Raises:
            ValueError: A file cannot be read.
        """
        units: list[Unit] = []
        for part in self.reader.parts():
            if units and units[-1].tasks < 1:
                units[-1] = join([units[-1], part])
            else:
                units.append(part)
        return [unit for unit in units if unit.rows]


@dataclass(frozen=True, slots=True)
class Image:
    """An image as the input has it.

    Attributes:
        path: The file's name relative to the input; of a row the path in it, else `file#row`.
        sha256: Of the encoded image, hex; None if its file cannot be read.
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
        place: Its name for the user.
        image_column: The Parquet column with the images; None if it has a usual name.

    Raises:
        UsageError: There are no images, or it is not clear which are meant.
    """
    found = _recognise(root, place)
    return Source(found, open_unlabelled(found, root, image_column))


def read(source: Source, unit: Unit) -> Iterator[Image]:
    """The images of a unit, in order; a few are in memory at a time.

    Raises:
        ValueError: A Parquet or tar file is broken.
    """
    if source.format != "folders":
        yield from map(_image, source.reader.read(unit))
        return
    for name in unit.files.split("\0")[:-1]:
        try:
            yield from map(_image, source.reader.read(source.reader.unit_of([(name, 0)])))
        except OSError as error:  # one file that cannot be read does not stop the others
            yield Image(_text(name), None, b"", error.strerror or str(error))


def _recognise(root: Path, place: str) -> str:
    """The format of the files in a folder, by their names."""
    kinds: set[str] = set()
    for name, _ in list_files(root):
        suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122  5 times as fast
        if suffix in (".parquet", ".tar"):
            kinds.add(suffix)
        elif not is_no_image(name):
            kinds.add("image" if suffix in IMAGE_SUFFIXES else "unknown")
    if {".parquet", "image"} <= kinds:
        raise UsageError(f"--input {place} holds Parquet files and images: name one of them.")
    formats = {
        ".parquet": "parquet",
        "image": "folders",
        ".tar": "webdataset",
        "unknown": "folders",
    }
    found = next((name for kind, name in formats.items() if kind in kinds), None)
    if found is None:
        raise UsageError(
            f"--input {place} holds no images: name a folder with images, Parquet or tar files, or "
            "one such file."
        )
    return found


def _image(raw: RawImage) -> Image:
    named = raw.path != f"{raw.file}:{raw.row}"
    path = _text(raw.path if named else f"{raw.file}#{raw.row}")
    return Image(path, hashlib.sha256(raw.data).hexdigest(), raw.data)


def _text(name: str) -> str:
    """A file's name as text that can be stored: it may be no UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def digest_of_images(images: Sequence[tuple[str, str | None]]) -> bytes:
    """What a digest of an input is updated with: the path and the SHA-256 of successive images."""
    return "".join(f"{path}\0{sha256}\n" for path, sha256 in images).encode()
