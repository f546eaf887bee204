"""Looks up which images an earlier output of `preprocess` has."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.data.digest_index import DigestIndex
from tasks.data.shards import ROWS, FetchableShards, shard_name


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
