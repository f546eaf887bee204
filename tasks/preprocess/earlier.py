"""Looks up which images an earlier output of `preprocess` has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.data.digest_index import DigestIndex
from tasks.data.shards import ROWS, Shards, shard_name


class FetchableShards:
    """The shards of a split, which are opened when they are read."""

    def __init__(self, paths: Sequence[Path], ends: Sequence[int]) -> None:
        """Opens nothing yet.

        Args:
            paths: As in `Shards`.
            ends: The rows of the split up to the end of each.
        """
        self._paths, self._ends = paths, np.array(ends)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def file_of(self, rows: NDArray[np.int64]) -> Path | None:
        """The file that has exactly some rows, at least one, in their order; None without one."""
        shard = int(self._owners(rows[:1])[0])
        first = self._ends[shard - 1] if shard else 0
        is_whole = np.array_equal(rows, np.arange(first, self._ends[shard]))
        return self._paths[shard] if is_whole else None

    def _owners(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._ends, rows, side="right")

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Reads images into memory, as `Shards` does; of no rows it does not know the shape."""
        if not len(rows):
            return np.empty(0)
        owners, parts = self._owners(rows), []
        for shard in np.unique(owners).tolist():
            first = self._ends[shard - 1] if shard else 0
            parts.append(Shards([self._paths[shard]])[rows[owners == shard] - first])
        places = np.argsort(np.argsort(owners, kind="stable"), kind="stable")
        return np.concatenate(parts)[places]


@dataclass(frozen=True)
class EarlierSplit:
    """A split of the earlier output.

    Attributes:
        index: The rows of its images, by the images' digests.
        images: Its shards.
    """

    index: DigestIndex
    images: FetchableShards

    @classmethod
    def open(cls, folder: Path) -> "EarlierSplit":
        """Reads the digests of a split's images; `rows.parquet` has a row group for each shard."""
        with pq.ParquetFile(folder / ROWS) as parquet:
            count = parquet.num_row_groups
            sizes = [parquet.metadata.row_group(number).num_rows for number in range(count)]
            index = DigestIndex.of(_digests(parquet))
        shards = [folder / shard_name(number) for number in range(count)]
        return cls(index, FetchableShards(shards, np.cumsum(sizes).tolist()))

    def find(self, images: pa.Table, split: str) -> NDArray[np.int64]:
        """The row in the earlier split of each image of a table that is in a split now.

        Args:
            images: The `split` and the `sha256` of images.
            split: The split.

        Returns:
            int64 (n,); -1 for one that is not there.
        """
        inside = images.filter(pc.equal(images["split"], split))
        return self.index.find(inside["sha256"].to_pylist())


def _digests(parquet: pq.ParquetFile) -> Iterator[list[str]]:
    for number in range(parquet.num_row_groups):
        yield parquet.read_row_group(number, columns=["sha256"])["sha256"].to_pylist()
