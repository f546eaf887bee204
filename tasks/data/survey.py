"""Looks at images that nobody has described yet: how many, of which classes and sizes."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from models.image import inspect
from retrain.workload import Data
from tasks.data import index
from tasks.data.listing import list_files
from tasks.data.reading import places_of

DECODED = 300  # images, evenly spaced; all of them are counted

# The folder below a class folder, in an image's name from the class folder on.
BELOW_CLASS = r"^[^/]+/([^/]+)/"
FEW_GROUPS = 3  # of a class; with fewer it cannot be in all splits


@dataclass(frozen=True)
class Survey:
    """What images are like.

    Attributes:
        format: `parquet`, `folders` or `table`.
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
    found = index.build(place, Data(path=str(place), group=BELOW_CLASS))
    shapes, modes, undecodable = _decode(found)
    if not shapes:
        path, error = next(iter(undecodable.items()), ("", "there is none"))
        raise ValueError(f"None of the images in {place} decodes: {path} ({error}).")
    labels, splits = (found.images[name].drop_null().to_pylist() for name in ("label", "split"))
    return Survey(
        format=found.format,
        bytes=sum(size for _, size in list_files(place)),
        classes=dict(Counter(labels)),
        splits=dict(Counter(splits)),
        groups=_groups(found),
        side=round(median(shapes)),
        is_grey=all(mode in ("1", "L", "LA", "I", "F") or mode.startswith("I;") for mode in modes),
        undecodable=undecodable,
        decoded=len(shapes),
    )


def _decode(found: index.Index) -> tuple[list[int], set[str], dict[str, str]]:
    """The shorter sides and the modes of some images; and why others do not decode."""
    some = found.images[:: max(1, len(found.images) // DECODED)]
    sides, modes, undecodable = [], set(), {}
    encoded = found.files.read(places_of(some))
    for path, data in zip(some["path"].to_pylist(), encoded, strict=True):
        try:
            properties, _ = inspect(data, reduced=True)
        except ValueError as error:
            undecodable[path] = str(error)
        else:
            sides.append(min(properties.width, properties.height))
            modes.add(properties.mode)
    return sides, modes, undecodable


def _groups(found: index.Index) -> int:
    """The number of folders below class folders that can stay in one split each."""
    if found.format != "folders":
        return 0
    groups = set()
    for name, split in zip(*(found.images[n].to_pylist() for n in ("file", "split")), strict=True):
        from_class = name.partition("/")[2] if split else name
        below = re.match(BELOW_CLASS, from_class)
        if not below:
            return 0
        groups.add((from_class.partition("/")[0], below[1]))
    per_class = Counter(label for label, _ in groups)
    return len({group for _, group in groups}) if min(per_class.values()) >= FEW_GROUPS else 0
