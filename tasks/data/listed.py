"""The file of listed images: what a person should look at, with what is proposed for each.

Columns, a row for each image, the first one first: `why` it is listed; `path`, `split` and `label`
(null where it has none); `proposed`, a class, and `confidence`, its probability; `distance` from
the other images, in units of what is usual; `look_alike`, the path of an image that looks the same
and has another label; `file`, `row` and `sha256`, by which it is found again; and `image`, the
encoded image.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.reading import ImageFiles

FILE = "listed.parquet"
WRONG_LABEL, CONTRADICTION, OUTLIER = "wrong label", "contradictory near-duplicate", "outlier"
TO_LABEL = "to label"
BATCH = 256  # images that are in memory at a time


def schema() -> pa.Schema:
    """The columns of the file."""
    texts = ("why", "path", "split", "label", "proposed")
    numbers = ("confidence", "distance")
    return pa.schema(
        {
            **dict.fromkeys(texts, pa.string()),
            **dict.fromkeys(numbers, pa.float32()),
            "look_alike": pa.string(),
            "file": pa.string(),
            "row": pa.int64(),
            "sha256": pa.string(),
            "image": pa.binary(),
        }
    )


def write(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes the file into a folder; a few rows are in memory at a time."""
    left = iter(rows)
    with pq.ParquetWriter(folder / FILE, schema()) as writer:
        while some := list(islice(left, BATCH)):
            writer.write_table(pa.Table.from_pylist(some, schema()))


def with_images(files: ImageFiles, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows with the encoded images, which are read from the data."""
    for first in range(0, len(rows), BATCH):
        some = rows[first : first + BATCH]
        encoded = read_encoded(files, ((row["file"], row["row"]) for row in some))
        yield from (row | {"image": image} for row, image in zip(some, encoded, strict=True))


def read_encoded(files: ImageFiles, places: Iterable[tuple[str, int]]) -> list[bytes]:
    """The encoded images at some places of the data (file and row), in that order."""
    wanted = list(places)
    ordered = sorted(set(wanted))
    images = dict(zip(ordered, files.read(ordered), strict=True))
    return [images[place] for place in wanted]


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of the file, a few of them in memory at a time."""
    with pq.ParquetFile(folder / FILE) as file:
        for batch in file.iter_batches(BATCH):
            yield from batch.to_pylist()
