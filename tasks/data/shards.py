"""Reads what training and evaluation take: prepared images, or embeddings of them.

`preprocess` writes images:

- `labels.json`: the class names by index
- `images.json`: `size`, `channels` and `resize`: the form of every image
- `<split>/images-00000.npy` and on: uint8 (N, H, W, C) each, one after the other in row order;
  those of the training split are larger by `images.margin`
- or, of the training split, `images-00000.jpegs`, the same images as JPEG files one after the
  other, and `images-00000.ends.npy`, int64 (N,), where each of them ends
- or, of the training split, only `source.json`: its images are decoded from the raw data
  (`tasks/data/source_images.py`)
- `<split>/labels.npy`: int64 (rows,), the index of each row's class
- `<split>/rows.parquet`: path, label, sha256, pixels, file, row: where each row comes from

The splits are train, val and test, and none is empty.

`embed` writes the same files, but `<split>/images-*.npy` hold an embedding of each image, float32
(N, D), and `report/test/images-*.npy` are the images of the test split, for plots.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from retrain.step import REPORT

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

LABELS = "labels.json"
IMAGES = "images.json"
ROWS = "rows.parquet"
SOURCE = "source.json"
PIXELS, JPEGS, ENDS = ".npy", ".jpegs", ".ends.npy"  # suffixes of a shard's files

# Imported by its name: a step that reads pixels does not depend on how JPEGs are decoded.
JPEG_MODULE = "tasks.data.jpeg_shards"
SOURCE_MODULE = "tasks.data.source_images"


def shard_name(number: int) -> str:
    """The file name of a split's shard, counted from 0; the names sort in row order."""
    return f"images-{number:05d}{PIXELS}"


class StoredImages(Protocol):
    """The images of a split, left on disk; `Shards` documents the methods.

    Attributes:
        decodes: Whether reading an image decodes it.
        shape: Of every image as stored: height, width and channels, or the length of an embedding.
        bytes_per_image: On disk, and in memory as `load` gives it; the mean.
    """

    decodes: bool
    shape: tuple[int, ...]
    bytes_per_image: float

    def __len__(self) -> int: ...

    def __getitem__(self, rows: "NDArray[np.int64]") -> "NDArray[Any]": ...

    def load(self, rows: "NDArray[np.int64]") -> Any:
        """Reads images into memory; the result is indexed from 0, in the order of `rows`."""


class Shards:
    """Pixels or embeddings of a split, left on disk; indexing reads only the rows it needs.

    The files are read and not mapped: a mapped file counts as memory of each process that reads it,
    up to all of it.
    """

    decodes = False

    def __init__(self, paths: Sequence[Path]) -> None:
        """Opens the shards.

        Args:
            paths: `.npy` files of one dtype, (N, …), at least one, in row order.
        """
        import numpy as np

        shards = [np.load(path, mmap_mode="r") for path in paths]
        self._paths = paths
        self._offsets: list[int] = [shard.offset for shard in shards]
        self._ends = np.cumsum([len(shard) for shard in shards])
        self.shape: tuple[int, ...] = shards[0].shape[1:]
        self._dtype = shards[0].dtype
        self.bytes_per_image: float = math.prod(self.shape) * self._dtype.itemsize

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, rows: "NDArray[np.int64]") -> "NDArray[Any]":
        """Reads images into memory; fastest for rows that follow each other on disk.

        Args:
            rows: int64 (n,), row indices of the split, from 0, in any order.

        Returns:
            (n, …), in the order of `rows`.
        """
        import numpy as np

        images = np.empty((len(rows), *self.shape), self._dtype)
        size = int(self.bytes_per_image)
        target = images.reshape(-1).view(np.uint8).data
        for shard, runs in runs_of(rows, self._ends):
            with self._paths[shard].open("rb") as file:
                for place, first, count in runs:
                    part = target[place * size : (place + count) * size]
                    read_into(file.fileno(), part, self._offsets[shard] + first * size)
        return images

    load = __getitem__


def publish(file: Path, target: Path) -> None:
    """Puts a finished file into an output, and leaves it where it is."""
    try:
        target.hardlink_to(file)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(file, target)


def runs_of(
    rows: "NDArray[np.int64]", ends: "NDArray[np.int64]"
) -> "Iterator[tuple[int, Iterator[tuple[int, int, int]]]]":
    """Divides rows into runs that are consecutive both in a shard and in `rows`.

    Args:
        rows: int64 (n,), of all shards.
        ends: int64 (shards,), where the rows of each end.

    Yields:
        A shard, and its runs: the place of the first row among the rows, its number in the shard,
        and how many follow.
    """
    import numpy as np

    if not len(rows):
        return
    assert rows.min() >= 0 and rows.max() < ends[-1], "a row that does not exist"
    order = np.argsort(rows, kind="stable")
    ascending = rows[order]
    owners = np.searchsorted(ends, ascending, side="right")
    together = (np.diff(ascending) == 1) & (np.diff(order) == 1) & (np.diff(owners) == 0)
    firsts = np.flatnonzero(np.concatenate(([True], ~together)))
    counts = np.diff(np.append(firsts, len(rows)))
    starts = np.concatenate(([0], ends))[owners[firsts]]
    columns = (owners[firsts], order[firsts], ascending[firsts] - starts, counts)
    runs = zip(*(column.tolist() for column in columns), strict=True)
    for shard, of_shard in groupby(runs, key=itemgetter(0)):
        yield shard, (run[1:] for run in of_shard)


def read_into(file: int, target: memoryview, offset: int) -> None:
    """Fills a piece of memory from an offset in a file."""
    while target:
        read = os.preadv(file, [target], offset)
        assert read, "a shard is shorter than it says"
        target, offset = target[read:], offset + read


@dataclass(frozen=True)
class PreparedSplit:
    """One split; index i is the same image in all its attributes.

    Attributes:
        images: Left on disk.
        labels: int64 (rows,), class indices.
        folder: The folder with its files.
    """

    images: StoredImages
    labels: "NDArray[np.int64]"
    folder: Path

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def rows(self) -> "pd.DataFrame":
        """Where each row comes from: path, label (the name), sha256, pixels, file, row."""
        import pandas as pd

        return pd.read_parquet(self.folder / ROWS)


@dataclass(frozen=True)
class Prepared:
    """The output of `preprocess` or `embed`. To pass it to another process, pass the folder.

    Attributes:
        folder: The artifact's folder.
        labels: The class names by index.
        images: `size`, `channels` and `resize`, as `models.image.to_array` takes them.
        pulled: The output of `pull`, where images are read that are not prepared.
    """

    folder: Path
    labels: tuple[str, ...]
    images: Mapping[str, Any]
    pulled: Path | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """What a network takes: height, width and channels, or the length of an embedding.

        The images of the training split may have a margin around it.
        """
        return self.split("val").images.shape

    def split(self, name: str) -> PreparedSplit:
        """Opens `train`, `val` or `test`."""
        import numpy as np

        folder = self.folder / name
        return PreparedSplit(self._open(folder), np.load(folder / "labels.npy"), folder)

    def pixels(self, split: str) -> StoredImages:
        """The images of the test split, also where it has embeddings."""
        kept = self.folder / REPORT / split
        return self._open(kept if kept.is_dir() else self.folder / split)

    def _open(self, folder: Path) -> StoredImages:
        opened: StoredImages
        if (folder / SOURCE).exists():
            opened = import_module(SOURCE_MODULE).SourceImages(folder, self.images, self.pulled)
        elif jpegs := sorted(folder.glob(f"images-*{JPEGS}")):
            opened = import_module(JPEG_MODULE).JpegShards(jpegs, self.images["channels"])
        else:
            opened = Shards(sorted(folder.glob(f"images-*{PIXELS}")))
        return opened


def open_prepared(folder: Path, pulled: Path | None = None) -> Prepared:
    """Opens the output of `preprocess` or `embed`.

    Args:
        folder: The artifact's folder.
        pulled: That of `pull`, to read images that are not prepared.
    """
    labels = json.loads((folder / LABELS).read_text(encoding="utf-8"))
    images = json.loads((folder / IMAGES).read_text(encoding="utf-8"))
    return Prepared(folder, tuple(labels), images, pulled)
