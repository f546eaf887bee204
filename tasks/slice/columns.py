"""What slices are made of: what is known of each test image.

That is in the image table, in the image itself, or in a column of the user's own
(`tasks/data/own_columns.py`).
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from tasks.compute.prefetch import prefetch
from tasks.data import image_facts, image_table, own_columns
from tasks.data.image_table import AcceptedImage, read_images
from tasks.data.raw_dataset import RawDataset

SPLIT = "test"
FROM_TABLE = ("width", "height", "mode", "bytes", "file")
FROM_IMAGE = (*image_facts.FACTS, "camera", "format")
_MAKE, _MODEL = 271, 272  # tags of EXIF


def read_table(validated: Path, columns: Sequence[str]) -> pa.Table:
    """Columns of the image table of the test images, in the order of the prepared rows."""
    return pa.concat_tables(image_table.read_split(validated, SPLIT, columns))


def read_columns(source: RawDataset, validated: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """What is known of each test image, by column; None where nothing is.

    Args:
        source: The data.
        validated: The output of `validate`.
        names: The columns.

    Raises:
        ValueError: There is no such column, or a file with it cannot be read.
    """
    own = [name for name in names if name not in (*FROM_TABLE, *FROM_IMAGE)]
    found = read_table(validated, [name for name in FROM_TABLE if name in names]).to_pydict()
    measured = [name for name in FROM_IMAGE if name in names]
    if measured:
        from joblib import cpu_count

        cores = cpu_count()
        images = read_images(source, validated, SPLIT)
        facts = list(prefetch(_measure, images, 2 * cores, cores))
        found |= {name: [of_image.get(name) for of_image in facts] for name in measured}
    if own:
        known = ", ".join((*FROM_TABLE, *FROM_IMAGE))
        otherwise = f"nothing that is known of every image ({known})"
        rows = read_table(validated, ["file", "row", "path"])
        found |= own_columns.read_columns(source, own, rows, "gate.slices", otherwise)
    return {name: found[name] for name in names}


def _measure(image: AcceptedImage) -> dict[str, Any]:

    with Image.open(io.BytesIO(image.data)) as opened:
        exif, kind = opened.getexif(), opened.format
    camera = " ".join(str(exif[tag]).strip("\0 ") for tag in (_MAKE, _MODEL) if tag in exif)
    facts = image_facts.measure(image.data) or {}
    return {**facts, "camera": camera or None, "format": kind}
