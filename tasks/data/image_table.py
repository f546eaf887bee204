"""Reads the table of accepted images that `validate` writes, and the images, a part at a time.

`images.parquet` has a row per image, in the order of the data's units (by file and row), and a row
group for each unit that has accepted images. Its columns: unit (number of the unit), split, path,
label, file, row, the image's properties (`models.image.ImageProperties`), bytes, sha256 (hex, of
the encoded image), and pixels, what it is in every encoding (`tasks.data.pixels.digest`).
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.image import ImageProperties
from tasks.data.raw_dataset import Reader, unit_of

SPLITS = ("train", "val", "test")  # in the order in which they are shown
FILE_NAME = "images.parquet"
SET_ASIDE = "quarantined.parquet"  # the bad images, in the same columns


@dataclass(frozen=True)
class RowGroup:
    """The accepted images of one unit.

    Attributes:
        number: The number of the row group in the file.
        bytes: The size of the encoded images.
        rows: How many images it has of each split; a split without images is left out.
    """

    number: int
    bytes: int
    rows: Mapping[str, int]


def schema() -> pa.Schema:
    """The columns of the image table."""
    types = {int: pa.int32(), float: pa.float64(), str: pa.string()}
    properties = {name: types[kind] for name, kind in get_type_hints(ImageProperties).items()}
    return pa.schema(
        {
            "unit": pa.int32(),
            "split": pa.string(),
            "path": pa.string(),
            "label": pa.string(),
            "file": pa.string(),
            "row": pa.int64(),
            **properties,
            "bytes": pa.int64(),
            "sha256": pa.string(),
            "pixels": pa.string(),
        }
    )


def row_groups(folder: Path) -> list[RowGroup]:
    """Lists the row groups, in order of the units.

    Args:
        folder: The output of `validate`.
    """
    listed = []
    for number, table in enumerate(read_groups(folder, ["bytes", "split"])):
        rows = Counter(table["split"].to_pylist())
        listed.append(RowGroup(number, pc.sum(table["bytes"]).as_py(), rows))
    return listed


def class_names(folder: Path) -> list[str]:
    """The classes of the training split, in natural order: the index of each is its number.

    Args:
        folder: The output of `validate`.
    """
    names: set[str] = set()
    for table in read_split(folder, "train", ["label"]):
        names.update(table["label"].unique().to_pylist())
    return sorted(names, key=natural_order)


def images_per_class(folder: Path, file: str = FILE_NAME) -> dict[str, int]:
    """Counts the images of each class over all splits; the classes are in natural order.

    Bad images that have no class are left out.

    Args:
        folder: The output of `validate`.
        file: The accepted images, or those that were `SET_ASIDE`.
    """
    counts: Counter[str] = Counter()
    with pq.ParquetFile(folder / file) as parquet:
        for batch in parquet.iter_batches(columns=["label"]):
            counts.update(batch.column(0).drop_null().to_pylist())
    return {name: counts[name] for name in sorted(counts, key=natural_order)}


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """A key to sort names by, with the numbers in them as numbers: "2" before "10"."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(part), part) if part[0] in "0123456789" else (1, 0, part) for part in parts]


def digest_of_split(folder: Path, split: str) -> str:
    """SHA-256 (hex) over the names, contents and classes of a split's images, in their order.

    Args:
        folder: The output of `validate`.
        split: `train`, `val` or `test`.
    """
    digest = hashlib.sha256()
    for table in read_split(folder, split, ["path", "label", "sha256", "pixels"]):
        digest.update("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()).encode())
    return digest.hexdigest()


def read_split(
    folder: Path, split: str, columns: Sequence[str], groups: Iterable[int] | None = None
) -> Iterator[pa.Table]:
    """Yields columns of the images of a split, one unit of the data at a time.

    Args:
        folder: The output of `validate`.
        split: `train`, `val` or `test`.
        columns: The names of the columns.
        groups: The numbers of the row groups; all if None.
    """
    for table in read_groups(folder, ["split", *columns], groups):
        rows = table.filter(pc.equal(table["split"], split)).select(columns)
        if len(rows):
            yield rows


def read_groups(
    folder: Path, columns: Sequence[str], groups: Iterable[int] | None = None
) -> Iterator[pa.Table]:
    """Yields columns of the images of each row group.

    Args:
        folder: The output of `validate`.
        columns: The names of the columns.
        groups: The numbers of the row groups; all if None.
    """
    # Threads or reading in advance would take longer than to read so few rows.
    with pq.ParquetFile(folder / FILE_NAME, pre_buffer=False) as parquet:
        for number in range(parquet.num_row_groups) if groups is None else groups:
            yield parquet.read_row_group(number, columns=columns, use_threads=False)


def read(folder: Path, row_group: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads one row group.

    Args:
        folder: The output of `validate`.
        row_group: The number of the row group.
        columns: The names of the columns; all columns if None.
    """
    with pq.ParquetFile(folder / FILE_NAME) as parquet:
        return parquet.read_row_group(row_group, columns=columns)


@dataclass(frozen=True, slots=True)
class AcceptedImage:
    """An image that `validate` accepted.

    Attributes:
        path: The name of the image in reports.
        label: The name of its class.
        sha256: SHA-256 (hex) of the encoded image.
        data: The encoded image.
        pixels: The identity of the image, as `tasks.data.pixels.digest` gives it; empty where it is
            not needed.
    """

    path: str
    label: str
    sha256: str
    data: bytes
    pixels: str = field(default="", compare=False)  # it follows from the data


def read_images(
    source: Reader,
    validated: Path,
    split: str,
    rows: Collection[int] | None = None,
    groups: Iterable[int] | None = None,
) -> Iterator[AcceptedImage]:
    """Reads the images of a split, in the order of its prepared rows; few are in memory at a time.

    Args:
        source: The data.
        validated: The output of `validate`.
        split: `train`, `val` or `test`.
        rows: The numbers of the rows among these, from 0; all rows if None.
        groups: The numbers of the row groups of the accepted images; all if None.
    """
    names = ["file", "row", "path", "label", "sha256", "pixels"]
    first = 0
    for table in read_split(validated, split, names, groups):
        inside = np.arange(first, first + len(table))
        first += len(table)
        if rows is not None:
            table = table.take(np.flatnonzero(np.isin(inside, list(rows))))
        files, numbers, *columns = table.to_pydict().values()
        raws = source.read(unit_of(zip(files, numbers, strict=True)))
        for raw, path, label, sha256, pixels in zip(raws, *columns, strict=True):
            yield AcceptedImage(path, label, sha256, raw.data, pixels)
