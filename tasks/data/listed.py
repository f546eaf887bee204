"""The file of listed images: what a person should look at, with what is proposed for each.

Columns, a row for each image, the first one first: `why` it is listed; `path`, `split` and `label`
(null where it has none); `proposed`, a class, and `confidence`, its probability; `distance` from
the other images, in units of what is usual; `look_alike`, the path of an image that looks the same
and has another label; `file`, `row` and `sha256`, by which it is found again; and `image`, the
encoded image.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.raw_dataset import Reader, unit_of

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


def write(
    images: pa.Table, columns: Mapping[str, Sequence[Any]], source: Reader, folder: Path
) -> None:
    """Writes the file.

    Args:
        images: What the data says of the images: `path`, `split`, `label`, `file`, `row`, `sha256`.
        columns: The other columns but `image`.
        source: The data, from which the images are read.
        folder: Where the file is written.
    """
    names = schema()
    for name, values in columns.items():
        images = images.append_column(name, pa.array(values, names.field(name).type))
    with pq.ParquetWriter(folder / FILE, names) as writer:
        for first in range(0, len(images), BATCH):
            some = images.slice(first, BATCH)
            places = zip(some["file"].to_pylist(), some["row"].to_pylist(), strict=True)
            encoded = pa.array(read_encoded(source, places), pa.binary())
            writer.write_table(some.append_column("image", encoded).select(names.names).cast(names))


def read_encoded(source: Reader, places: Iterable[tuple[str, int]]) -> list[bytes]:
    """The encoded images at some places of the data (file and row), in that order."""
    wanted = list(places)
    unit = unit_of(sorted(set(wanted)))
    images = {(raw.file, raw.row): raw.data for raw in source.read(unit)}
    return [images.get(place, b"") for place in wanted]


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of the file, a few of them in memory at a time."""
    with pq.ParquetFile(folder / FILE) as file:
        for batch in file.iter_batches(BATCH):
            yield from batch.to_pylist()
