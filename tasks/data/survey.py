"""Looks at images that nobody has described yet: how many, of which classes and sizes."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from models.image import ImageProperties, inspect
from retrain.workload import Data
from tasks.data import index
from tasks.data.listing import list_files
from tasks.data.raw_images import places_of

if TYPE_CHECKING:
    import pandas as pd

DECODED = 300  # images, evenly spaced; all of them are counted

GREY = ("1", "L", "LA", "I", "F")  # modes
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


def survey(place: Path, data: Data) -> Survey:
    """Looks at a folder of images.

    Args:
        place: The folder.
        data: What the user says of it; the path does not matter.

    Raises:
        ValueError: The format is not recognised, a file is broken, or no image decodes.
    """
    found = index.build(place, data)
    if found.format == "folders":
        index.check_classes(place, found.images)
    images = found.images.select(["file", "label", "split"]).to_pandas()
    shapes, undecodable = _decode(found)
    if not shapes:
        path, error = next(iter(undecodable.items()), ("", "there is none"))
        raise ValueError(f"None of the images in {place} decodes: {path} ({error}).")
    return Survey(
        format=found.format,
        bytes=sum(size for _, size in list_files(place)),
        classes=dict(Counter(images["label"].dropna())),
        splits=dict(Counter(images["split"].dropna())),
        groups=_groups(images) if found.format == "folders" else 0,
        side=round(median(min(shape.width, shape.height) for shape in shapes)),
        is_grey=all(shape.mode in GREY or shape.mode.startswith("I;") for shape in shapes),
        undecodable=undecodable,
        decoded=len(shapes),
    )


def _decode(found: index.Index) -> tuple[list[ImageProperties], dict[str, str]]:
    """The properties of some images; and why others do not decode."""
    some = found.images[:: max(1, len(found.images) // DECODED)]
    shapes, undecodable = [], {}
    encoded = found.files.read(places_of(some))
    for path, data in zip(some["path"].to_pylist(), encoded, strict=True):
        try:
            shapes.append(inspect(data, reduced=True)[0])
        except ValueError as error:
            undecodable[path] = str(error)
    return shapes, undecodable


def _groups(images: "pd.DataFrame") -> int:
    """The number of folders below class folders that can stay in one split each."""
    from_class = images["file"].where(images["split"].isna(), images["file"].str.partition("/")[2])
    below = from_class.str.extract(BELOW_CLASS, expand=False)
    groups = below.groupby(images["label"]).nunique()
    return below.nunique() if below.notna().all() and groups.min() >= FEW_GROUPS else 0
