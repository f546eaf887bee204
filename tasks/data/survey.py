"""Looks at images that nobody has described yet: how many, of which classes and sizes."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from models.image import inspect
from tasks.data.formats import recognise
from tasks.data.listing import list_files
from tasks.data.raw_dataset import RawDataset, open_format, unit_of

DECODED = 300  # images, evenly spaced; all of them are counted

# The folder below a class folder, in an image's name from the class folder on.
BELOW_CLASS = r"^[^/]+/([^/]+)/"
FEW_GROUPS = 3  # of a class; with fewer it cannot be in all splits


@dataclass(frozen=True)
class Survey:
    """What images are like.

    Attributes:
        format: A key of `tasks.data.raw_dataset.READERS`.
        bytes: The size of all files.
        classes: The number of images of each class, by its name; without images without a class.
        splits: The number of images of each split; empty if no names define splits.
        groups: The number of folders below the class folders, if all images are in one, and each
            class in several; else 0.
        side: The median of the shorter sides, in pixels.
        is_grey: Whether no image has colours.
        undecodable: Why images do not decode, by their paths.
        decoded: How many images were decoded, for these figures.
    """

    format: str
    bytes: int
    classes: Mapping[str, int]
    splits: Mapping[str, int]
    groups: int
    side: int
    is_grey: bool
    undecodable: Mapping[str, str]
    decoded: int

    @property
    def images(self) -> int:
        """How many images have a class."""
        return sum(self.classes.values())


def survey(place: Path) -> Survey:
    """Looks at a folder of images.

    Raises:
        ValueError: The format is not recognised, a file is broken, or no image decodes.
    """
    files = list(list_files(place))
    source = open_format(recognise(place, [name for name, _ in files]), place)
    labels = list(source.labels())
    shapes, modes, undecodable = _decode(source, len(labels))
    if not shapes:
        path, error = next(iter(undecodable.items()), ("", "there is none"))
        raise ValueError(f"None of the images in {place} decodes: {path} ({error}).")
    return Survey(
        format=source.format,
        bytes=sum(size for _, size in files),
        classes=dict(Counter(label for label, _ in labels if label is not None)),
        splits=dict(Counter(split for _, split in labels if split is not None)),
        groups=_groups(source),
        side=round(median(shapes)),
        is_grey=all(mode in ("1", "L", "LA", "I", "F") or mode.startswith("I;") for mode in modes),
        undecodable=undecodable,
        decoded=len(shapes),
    )


def _decode(source: RawDataset, count: int) -> tuple[list[int], set[str], dict[str, str]]:
    """The shorter sides and the modes of some images; and why others do not decode."""
    places = (
        (piece.file, piece.first + row)
        for part in source.parts()
        for piece in part.pieces
        for row in range(piece.rows)
    )
    step = max(1, count // DECODED)
    unit = unit_of(place for number, place in enumerate(places) if number % step == 0)
    sides, modes, undecodable = [], set(), {}
    for raw in source.read(unit):
        try:
            properties, _ = inspect(raw.data, reduced=True)
        except ValueError as error:
            undecodable[raw.path] = str(error)
        else:
            sides.append(min(properties.width, properties.height))
            modes.add(properties.mode)
    return sides, modes, undecodable


def _groups(source: RawDataset) -> int:
    """The number of folders below class folders that can stay in one split each."""
    if source.format != "folders":
        return 0
    groups = set()
    for name, _ in source.image_files():
        from_class = name.partition("/")[2] if source.split_of(name) else name
        found = re.match(BELOW_CLASS, from_class)
        if not found:
            return 0
        groups.add((from_class.partition("/")[0], found[1]))
    per_class = Counter(label for label, _ in groups)
    return len({group for _, group in groups}) if min(per_class.values()) >= FEW_GROUPS else 0
