"""Reads tar files in the layout of WebDataset: a sample is the files of one name after each other.

`0001.jpg` and `0001.cls` are an image and its class: a name or a number, or `label` in a `.json`.
The split is in the name of the tar file or its folder, as with Parquet.
"""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tasks.data.listing import check_splits, is_no_image, list_files, split_of_parquet
from tasks.data.raw_dataset import Piece, RawImage, Unit, group

if TYPE_CHECKING:
    from tasks.data.raw_dataset import Columns


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample: None where it lacks a part."""

    key: str
    image: tarfile.TarInfo | None
    label: tarfile.TarInfo | None


@dataclass(frozen=True)
class TarFiles:
    """The tar files in a folder.

    Attributes:
        root: The folder that the files' names are relative to.
        labelled: Whether the samples have classes, and the names splits.
    """

    root: Path
    labelled: bool = True

    def parts(self) -> Iterator[Unit]:
        """The samples, in the smallest units that are worth a task."""
        files = (each for each in list_files(self.root) if each[0].endswith(".tar"))
        for name, _ in list(check_splits(files, _split_of) if self.labelled else files):
            samples = (
                Unit(1, sample.image.size if sample.image else 0, (Piece(name, row, 1),))
                for row, sample in enumerate(self._samples(name))
            )
            yield from group(samples, tasks=1)

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit; see `tasks.data.raw_dataset.Reader`."""
        for name, pieces in groupby(unit.pieces, key=lambda piece: piece.file):
            samples, split = self._samples(name), _split_of(name)
            with (self.root / name).open("rb") as file:
                for piece in pieces:
                    for row in range(piece.first, piece.first + piece.rows):
                        image, label = samples[row].image, samples[row].label
                        data = _content(file, image) if image else b""
                        path = f"{name}/{image.name if image else samples[row].key}"
                        value = _label(name, label, file) if label and self.labelled else None
                        yield RawImage(name, row, path, value, split, data)

    def _samples(self, name: str) -> list[_Sample]:
        path = self.root / name
        return _samples_of(path, name, path.stat().st_mtime_ns)


def open_reader(data: "Columns", root: Path) -> TarFiles:
    """The tar files in a folder."""
    return TarFiles(root)


def open_unlabelled(root: Path, image_column: str | None) -> TarFiles:
    """The tar files in a folder; what is beside an image in a sample is not read."""
    return TarFiles(root, labelled=False)


@lru_cache(maxsize=2)
def _samples_of(path: Path, name: str, changed: int) -> list[_Sample]:
    """The samples of a tar file, by the headers in it.

    Args:
        path: Where it is.
        name: Its name for the user.
        changed: When it was; part of what the result is kept under.

    Raises:
        ValueError: It is broken.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            files = [member for member in tar if member.isfile()]
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{name} is no tar file, or a compressed or broken one: {error}") from None
    samples = []
    for key, group_of_key in groupby(files, key=lambda file: _key(file.name)):
        members = list(group_of_key)
        images = (each for each in members if _is_image(each.name))
        labels = (each for each in members if each.name.endswith((".cls", ".json")))
        samples.append(_Sample(key, next(images, None), next(labels, None)))
    return samples


def _content(file: BinaryIO, member: tarfile.TarInfo) -> bytes:
    file.seek(member.offset_data)
    return file.read(member.size)


def _split_of(name: str) -> str | None:
    return split_of_parquet(name.removesuffix(".tar"))


def _key(name: str) -> str:
    """A file's name without its extension, which begins at the first dot, as in WebDataset."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.split('.')[0]}"


def _is_image(name: str) -> bool:
    return not is_no_image(name) and not name.endswith(".cls")


def _label(name: str, label: tarfile.TarInfo, file: BinaryIO) -> str | None:
    """The class of a sample; None if its `.json` has none.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        text = _content(file, label).decode()
        if label.name.endswith(".cls"):
            return text.strip() or None
        value = json.loads(text).get("label")
    except (ValueError, AttributeError):
        raise ValueError(
            f"{name}/{label.name} holds no class: a .cls is a name or a number, a .json an object "
            "with `label`."
        ) from None
    return None if value is None else str(value)
