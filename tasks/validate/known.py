"""Keeps what the scan has found of each image, so that the next version of the data takes it.

The output has the scan's file about each unit of the data below `known/`, named by the names, the
classes and the contents of the images. Of a unit whose images are the same files, the next scan
takes the file as it is. What is found of an image that decodes follows from its content, whatever
its name and class are: the scan looks the images of other units up in `facts.arrow`, which it makes
of the files that it has not taken, and decodes the rest.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
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
_NAMED_BY = ("file", "row", "path", "split", "label", "sha256")
# The columns that the image table lacks.
MORE = pa.schema(
    {"fingerprint": pa.int64(), "thumbnail": pa.binary(THUMBNAIL), "taken": pa.string()}
)


def schema() -> pa.Schema:
    """The columns of what is known: the digest of an image, and what follows from its content."""
    names = ("sha256", "width", "height", "mode", "pixels")
    return pa.schema([*(image_table.schema().field(name) for name in names), *MORE])


def keep(file: Path, images: pa.Table, folder: Path) -> None:
    """Keeps what was found of the images of a unit.

    Args:
        file: The file of the scan.
        images: What it has.
        folder: The output of `validate`.
    """
    rows = zip(*(images[name].to_pylist() for name in _NAMED_BY), strict=True)
    # Whether an image decodes may depend on what else is installed, so it is tried again.
    is_whole = images["error"].null_count == len(images)
    link_file(file, folder / FOLDER / (_name(rows) if is_whole else f"again-{file.name}"))


def files_of(earlier: Path) -> list[Path]:
    """The files that an earlier output of `validate` has about units."""
    return sorted((earlier / FOLDER).glob("*.parquet"))


def take(earlier: Path, images: Iterable[Sequence[Any]], file: Path) -> Path | None:
    """Takes the file about a unit if all of its images are the same; None if there is none.

    Args:
        earlier: The earlier output of `validate`.
        images: The values of `_NAMED_BY` for each image.
        file: Where it is put.
    """
    same = earlier / FOLDER / _name(images)
    if not same.exists():
        return None
    link_file(same, file)
    return same


def _name(images: Iterable[Sequence[Any]]) -> str:
    """The file about a unit, by the values of `_NAMED_BY` for each image."""
    return f"{hashlib.sha256(json.dumps([*images]).encode()).hexdigest()}.parquet"


@dataclass(frozen=True)
class KnownImages:
    """What an earlier scan has found, left on disk; cheap to send to a worker.

    Attributes:
        folder: The folder of the table and its index.
    """

    folder: Path

    @classmethod
    def of(cls, files: Iterable[Path], folder: Path) -> "KnownImages":
        """Gathers what files about units have, unless a killed run has done so."""
        if not folder.exists():
            with atomic.replacing(folder) as aside:
                aside.mkdir(parents=True)
                DigestIndex.of(_gather(files, aside / _TABLE)).save(aside)
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


def _gather(files: Iterable[Path], target: Path) -> Iterator[list[str]]:
    """Writes a table of what all files have, a batch for each; yields the digests in each."""
    with pa.OSFile(str(target), "wb") as file, pa.ipc.new_file(file, schema()) as writer:
        for path in files:
            images = pq.read_table(path, columns=[*schema().names, "error"], use_threads=False)
            decoded = images.filter(pc.is_null(images["error"])).select(schema().names)
            for batch in decoded.combine_chunks().to_batches():
                writer.write_batch(batch)
                yield batch["sha256"].to_pylist()


@lru_cache(maxsize=1)
def _open(folder: Path) -> tuple[DigestIndex, Any, NDArray[np.int64]]:
    """The index, the table, and where its batches end."""
    table = pa.ipc.open_file(pa.memory_map(str(folder / _TABLE)))
    sizes = [len(table.get_batch(number)) for number in range(table.num_record_batches)]
    return DigestIndex.load(folder), table, np.cumsum(sizes, dtype=np.int64)
