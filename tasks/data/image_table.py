"""Reads the table of accepted images that `validate` writes.

`images.parquet` has a row per image, in the order of the index (by file and row): split, path,
label, file, row, the image's properties (`models.image.ImageProperties`), brightness and contrast
(`tasks.data.image_facts.luminance`), bytes, sha256 (hex, of the encoded image), pixels, what it is
in every encoding (`tasks.data.image_facts.digest`); tie, a number that is the same for images that
belong together (`tasks/validate/splits.py`); and then the user's own columns.

`findings.arrow` has what was found of each image that decodes, in order of the SHA-256, for steps
that look again.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from models.image import ImageProperties

if TYPE_CHECKING:
    import pandas as pd

FILE_NAME = "images.parquet"
SET_ASIDE = "quarantined.parquet"  # the bad images, in the same columns
# Below `report/`; and of data that is rejected, in the project's state folder.
NEAR_DUPLICATES = "near_duplicates.csv"
CORRECTED = "corrected.csv"  # the labels that corrections have changed
RESULTS = "validation_results.json"  # of Great Expectations, a result for each table
REJECTED, REJECTION = "rejected", "rejection.json"  # the folder; and the message
FINDINGS = "findings.arrow"
_TYPES = {int: pa.int32(), bool: pa.bool_(), str: pa.string(), str | None: pa.string()}
PROPERTIES = {
    **{name: _TYPES[kind] for name, kind in get_type_hints(ImageProperties).items()},
    **dict.fromkeys(("brightness", "contrast"), pa.float64()),
}
SCHEMA = pa.schema(
    {
        **dict.fromkeys(("split", "path", "label", "file"), pa.string()),
        "row": pa.int64(),
        **PROPERTIES,
        "bytes": pa.int64(),
        **dict.fromkeys(("sha256", "pixels"), pa.string()),
        "tie": pa.int64(),
    }
)


def write(images: "pd.DataFrame", own: pa.Table, file: Path) -> None:
    """Writes a table of images.

    Args:
        images: The columns of `SCHEMA`, and others, which are left out.
        own: The columns that follow, of the same images.
        file: The Parquet file.
    """
    table = pa.Table.from_pandas(images[SCHEMA.names], SCHEMA, preserve_index=False)
    for name in own.column_names:
        table = table.append_column(name, own[name])
    pq.write_table(table.replace_schema_metadata(), file)


def read_split(
    validated: Path, split: str | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """The images of a split, in order; of all splits if that is None.

    Args:
        validated: The output of `validate`.
        split: `train`, `val` or `test`.
        columns: The names of the columns; all if None.
    """
    wanted = split and [("split", "==", split)]
    return pq.read_table(validated / FILE_NAME, columns=columns, filters=wanted, use_threads=False)


def class_names(validated: Path) -> list[str]:
    """The classes of the training split, in natural order: the index of each is its number."""
    labels = read_split(validated, "train", ["label"])["label"].unique().to_pylist()
    return sorted(labels, key=natural_order)


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """A key to sort names by, with the numbers in them as numbers: "2" before "10"."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(part), part) if part[0] in "0123456789" else (1, 0, part) for part in parts]


def digest_of_split(validated: Path, split: str) -> str:
    """SHA-256 (hex) over the names, contents and classes of a split's images, in their order.

    Args:
        validated: The output of `validate`.
        split: `train`, `val` or `test`.
    """
    rows = read_split(validated, split, ["path", "label", "sha256", "pixels"]).to_pylist()
    return hashlib.sha256("".join(f"{json.dumps(row)}\n" for row in rows).encode()).hexdigest()
