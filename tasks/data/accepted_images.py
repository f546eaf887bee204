"""Reads the encoded images of a split, as a served model would receive them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.data import image_table
from tasks.data.raw_dataset import unit_of

if TYPE_CHECKING:
    from tasks.data.raw_dataset import RawDataset


@dataclass(frozen=True, slots=True)
class AcceptedImage:
    """An image that `validate` accepted.

    Attributes:
        path: Its name in reports.
        label: The name of its class.
        sha256: Of the encoded image.
        data: The encoded image.
        pixels: Its identity, as `tasks.data.pixels.digest` gives it; empty where it is not needed.
    """

    path: str
    label: str
    sha256: str
    data: bytes
    pixels: str = field(default="", compare=False)  # it follows from the data


def read_images(
    source: "RawDataset", validated: Path, split: str, rows: Collection[int] | None = None
) -> Iterator[AcceptedImage]:
    """Reads the images of a split, in the order of its prepared rows; few are in memory at a time.

    Args:
        source: The data.
        validated: The output of `validate`.
        split: `train`, `val` or `test`.
        rows: The numbers of those wanted in the split, from 0; all if None.
    """
    names = ["file", "row", "path", "label", "sha256", "pixels"]
    first = 0
    for table in image_table.read_split(validated, split, names):
        inside = np.arange(first, first + len(table))
        first += len(table)
        if rows is not None:
            table = table.take(np.flatnonzero(np.isin(inside, list(rows))))
        files, numbers, *columns = table.to_pydict().values()
        raws = source.read(unit_of(zip(files, numbers, strict=True)))
        for raw, path, label, sha256, pixels in zip(raws, *columns, strict=True):
            yield AcceptedImage(path, label, sha256, raw.data, pixels)
