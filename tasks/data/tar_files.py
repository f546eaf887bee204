"""Reads tar files in the layout of WebDataset: successive files with one name are a sample.

`0001.jpg` and `0001.cls` are an image and its class: a name or a number, or `label` in a `.json`.
The split is in the name of the tar file or its folder, as with Parquet.
"""

import json
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tasks.data.listing import is_no_image, split_of_parquet
from tasks.data.packed_files import PackedImages
from tasks.data.raw_dataset import Piece, RawImage, Unit, group


class _Sample(NamedTuple):
    """A sample of a tar file; a part that the sample lacks is None."""

    key: str
    image: tarfile.TarInfo | None
    label: tarfile.TarInfo | None


class Images(PackedImages):
    """The images in the tar files of a folder."""

    def holds_images(self, name: str) -> bool:
        """Whether it is a tar file."""
        return name.endswith(".tar")

    def split_of(self, name: str) -> str | None:
        """The split in a file's name, else in that of the nearest folder that has one."""
        return split_of_parquet(name.removesuffix(".tar")) if self.labelled else None

    def parts_of(self, name: str) -> Iterator[Unit]:
        """The samples of a file, in the smallest units that are worth a task."""
        samples = (
            Unit(1, sample.image.size if sample.image else 0, (Piece(name, row, 1),))
            for row, sample in enumerate(_samples(self.root / name, name))
        )
        return group(samples, tasks=1)

    def read(self, unit: Unit) -> Iterator[RawImage]:
        """The images of a unit; see `tasks.data.raw_dataset.Reader`."""
        for name, pieces in groupby(unit.pieces, key=attrgetter("file")):
            place, split = self.root / name, self.split_of(name)
            samples = _samples(place, name)
            with place.open("rb") as file:
                for row in (row for p in pieces for row in range(p.first, p.first + p.rows)):
                    key, image, label = samples[row]
                    data = _content(file, image) if image else b""
                    path = f"{name}/{image.name if image else key}"
                    value = _label(name, label, file) if label and self.labelled else None
                    yield RawImage(name, row, path, value, split, data)


@lru_cache(maxsize=2)
def _samples(path: Path, name: str) -> list[_Sample]:
    """The samples of a tar file, by the headers in it.

    Raises:
        ValueError: The tar file is broken.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            files = [member for member in tar if member.isfile()]
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"{name} is no tar file, or a compressed or broken one: {error}") from None
    samples = []
    for key, members in groupby(files, key=lambda file: _key(file.name)):
        image = label = None
        for member in members:
            if member.name.endswith((".cls", ".json")):
                label = label or member
            elif not is_no_image(member.name):
                image = image or member
        samples.append(_Sample(key, image, label))
    return samples


def _content(file: BinaryIO, member: tarfile.TarInfo) -> bytes:
    file.seek(member.offset_data)
    return file.read(member.size)


def _key(name: str) -> str:
    """A file's name without its extension, which begins at the first dot, as in WebDataset."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.split('.')[0]}"


def _label(name: str, label: tarfile.TarInfo, file: BinaryIO) -> str | None:
    """The class of a sample; None if its `.json` has none.

    Raises:
        ValueError: The class cannot be read.
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
