"""Keeps what the scan has found of each image, so that the next version of the data takes it.

What is found of an image that decodes follows from its content, whatever its name and class are.
The output has a file for each unit of the data below `known/`, named by the content of the images;
one that stays the same is a link to that of the earlier output. A scan looks the images up in
`facts.arrow`, which it makes of these files, and decodes the others.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain import atomic
from tasks.data import image_table
from tasks.data.digest_index import DigestIndex
from tasks.data.fingerprint import THUMBNAIL
from tasks.data.listing import link_file

FOLDER = "known"
_TABLE = "facts.arrow"
# The columns that the image table lacks.
MORE = pa.schema(
    {"fingerprint": pa.int64(), "thumbnail": pa.binary(THUMBNAIL), "taken": pa.string()}
)


def schema() -> pa.Schema:
    """The columns of what is known: the digest of an image, and what follows from its content."""
    names = ("sha256", "width", "height", "mode", "pixels")
    return pa.schema([*(image_table.schema().field(name) for name in names), *MORE])


def keep(images: pa.Table, folder: Path, earlier: Path | None) -> None:
    """Writes what was found of the images of a unit, or links the file that has the same.

    Args:
        images: The images, as a file of the scan has them.
        folder: The output of `validate`.
        earlier: The earlier one.
    """
    # Whether an image decodes may depend on what else is installed.
    decoded = images.filter(pc.is_null(images["error"])).select(schema().names)
    digest = hashlib.sha256("".join(decoded["sha256"].to_pylist()).encode()).hexdigest()
    name = f"{FOLDER}/{digest}.parquet"
    if earlier and (earlier / name).exists():
        link_file(earlier / name, folder / name)
    else:
        (folder / FOLDER).mkdir(exist_ok=True)
        pq.write_table(decoded, folder / name)


@dataclass(frozen=True)
class KnownImages:
    """What an earlier scan has found, left on disk; cheap to send to a worker.

    Attributes:
        folder: The folder of the table and its index.
    """

    folder: Path

    @classmethod
    def of(cls, earlier: Path, folder: Path) -> "KnownImages":
        """Gathers what an earlier output of `validate` has, unless a killed run has done so."""
        if not folder.exists():
            with atomic.replacing(folder) as aside:
                aside.mkdir(parents=True)
                DigestIndex.of(_gather(earlier, aside / _TABLE)).save(aside)
        return cls(folder)

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return sorted(self.folder.iterdir())

    def find(self, digests: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What is known of images, by their digests; nothing of those that are not known."""
        index, table, ends = _open(self.folder)
        rows = np.unique(index.find(digests))
        rows = rows[rows >= 0]
        batches = np.searchsorted(ends, rows, side="right")
        found = {}
        for number in np.unique(batches).tolist():
            batch = table.get_batch(number)
            places = rows[batches == number] - (ends[number] - len(batch))
            for row in batch.take(pa.array(places)).to_pylist():
                found[row.pop("sha256")] = row
        return found


def _gather(earlier: Path, target: Path) -> Iterator[list[str]]:
    """Writes a table of what all files have, a batch for each; yields the digests in each."""
    with pa.OSFile(str(target), "wb") as file, pa.ipc.new_file(file, schema()) as writer:
        for path in sorted((earlier / FOLDER).glob("*.parquet")):
            for batch in pq.read_table(path, use_threads=False).combine_chunks().to_batches():
                writer.write_batch(batch)
                yield batch["sha256"].to_pylist()


@lru_cache(maxsize=1)
def _open(folder: Path) -> tuple[DigestIndex, Any, NDArray[np.int64]]:
    """The index, the table, and where its batches end."""
    table = pa.ipc.open_file(pa.memory_map(str(folder / _TABLE)))
    sizes = [len(table.get_batch(number)) for number in range(table.num_record_batches)]
    return DigestIndex.load(folder), table, np.cumsum(sizes, dtype=np.int64)
