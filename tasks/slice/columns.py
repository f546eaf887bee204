"""What slices are made of: what is known of each test image.

That is in the image table, in the image itself, or in a column of the user's own
(`tasks/data/own_columns.py`).
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from PIL import Image

from tasks.compute.prefetch import prefetch
from tasks.data import image_facts, image_table
from tasks.data.accepted_images import AcceptedImage, read_images
from tasks.data.own_columns import OwnColumns

if TYPE_CHECKING:
    from tasks.data.raw_dataset import RawDataset

SPLIT = "test"
FROM_TABLE = ("width", "height", "mode", "bytes", "file")
FROM_IMAGE = (*image_facts.FACTS, "camera", "format")
_MAKE, _MODEL = 271, 272  # tags of EXIF


@dataclass(frozen=True)
class TestSplit:
    """The test images.

    Attributes:
        source: The data.
        root: Its folder.
        validated: The output of `validate`.
    """

    source: "RawDataset"
    root: Path
    validated: Path

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Columns of the image table, in the order of the prepared rows."""
        return pa.concat_tables(image_table.read_split(self.validated, SPLIT, columns))


def read_columns(split: TestSplit, names: Sequence[str]) -> dict[str, list[Any]]:
    """What is known of each test image, by column; None where nothing is.

    Raises:
        ValueError: There is no such column, or a file with it cannot be read.
    """
    own = [name for name in names if name not in (*FROM_TABLE, *FROM_IMAGE)]
    found = split.table([name for name in FROM_TABLE if name in names]).to_pydict()
    found |= _measured(split, [name for name in FROM_IMAGE if name in names])
    if own:
        known = ", ".join((*FROM_TABLE, *FROM_IMAGE))
        otherwise = f"nothing that is known of every image ({known})"
        columns = OwnColumns(split.source.format, split.root, own, "gate.slices", otherwise)
        found |= columns.read(split.table(["file", "row", "path"]))
    return {name: found[name] for name in names}


def _measured(split: TestSplit, names: Sequence[str]) -> dict[str, list[Any]]:
    """Facts about the images themselves."""
    from joblib import cpu_count

    columns: dict[str, list[Any]] = {name: [] for name in names}
    if names:
        cores = cpu_count()
        images = read_images(split.source, split.validated, SPLIT)
        for facts in prefetch(_measure, images, 2 * cores, cores):
            for name, values in columns.items():
                values.append(facts.get(name))
    return columns


def _measure(image: AcceptedImage) -> dict[str, Any]:

    with Image.open(io.BytesIO(image.data)) as opened:
        exif, kind = opened.getexif(), opened.format
    camera = " ".join(str(exif[tag]).strip("\0 ") for tag in (_MAKE, _MODEL) if tag in exif)
    facts = image_facts.measure(image.data) or {}
    return {**facts, "camera": camera or None, "format": kind}
