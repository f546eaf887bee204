"""Reads the input of training and evaluation: prepared images, or embeddings of them.

`preprocess` writes images:

- `labels.json`: the class names by index
- `images.json`: `size`, `channels` and `resize`: the form of every image
- `<split>/images-00000.npy` and on: uint8 (N, H, W, C) each, one after the other in row order;
  those of the training split are larger by `images.margin`
- or, of the training split, only `source.json`: its images are decoded from the raw data while
  the network trains (`tasks/train/stream.py`)
- `<split>/labels.npy`: int64 (rows,), the index of each row's class
- `<split>/rows.parquet`: path, label, sha256, pixels, file, row: where each row comes from

The splits are train, val and test, and none is empty.

`embed` writes the same files, but `<split>/images-*.npy` hold an embedding of each image, float32
(N, D).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retrain.outputs import list_files
from retrain.step import json_digest

if TYPE_CHECKING:
    from retrain.workload import Workload

LABELS = "labels.json"
IMAGES = "images.json"
ROWS = "rows.parquet"
SOURCE = "source.json"


def shard_name(number: int) -> str:
    """The file name of a split's shard, counted from 0; the names sort in row order."""
    return f"images-{number:05d}.npy"


class Shards:
    """Pixels or embeddings of a split, mapped from disk.

    Attributes:
        shape: The shape of a stored image: height, width, channels; or the length of an embedding.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Opens the shards.

        Args:
            paths: `.npy` files of one dtype, (N, …), at least one, in row order.
        """
        self._shards = [np.load(path, mmap_mode="r") for path in paths]
        self._ends = np.cumsum([len(shard) for shard in self._shards])
        self.shape: tuple[int, ...] = self._shards[0].shape[1:]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Reads images into memory; fastest for rows that follow each other on disk.

        Args:
            rows: int64 (n,), row indices of the split, from 0, in any order.

        Returns:
            (n, …), in the order of `rows`.
        """
        assert not len(rows) or 0 <= rows.min() <= rows.max() < len(self), "a row that is not there"
        images = np.empty((len(rows), *self.shape), self._shards[0].dtype)
        owners = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(owners).tolist():
            inside, shard = owners == number, self._shards[number]
            images[inside] = shard[rows[inside] - (self._ends[number] - len(shard))]
        return images


@dataclass(frozen=True)
class PreparedSplit:
    """One split; index i is the same image in all its attributes.

    Attributes:
        labels: int64 (rows,), class indices.
        folder: The folder with its files.
    """

    labels: NDArray[np.int64]
    folder: Path

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def images(self) -> Shards:
        """The images, left on disk."""
        return Shards(sorted(self.folder.glob("images-*.npy")))


@dataclass(frozen=True)
class Prepared:
    """The output of `preprocess` or `embed`. To pass it to another process, pass the folder.

    Attributes:
        folder: The artifact's folder.
        labels: The class names by index.
        images: `size`, `channels` and `resize`, as `models.image.to_array` takes them.
    """

    folder: Path
    labels: tuple[str, ...]
    images: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a network's input: height, width, channels; or the length of an embedding.

        The images of the training split may have a margin around it.
        """
        return self.split("val").images.shape

    def split(self, name: str) -> PreparedSplit:
        """Opens `train`, `val` or `test`."""
        folder = self.folder / name
        return PreparedSplit(np.load(folder / "labels.npy"), folder)


def open_prepared(folder: Path) -> Prepared:
    """Opens the output of `preprocess` or `embed`."""
    labels = json.loads((folder / LABELS).read_text(encoding="utf-8"))
    images = json.loads((folder / IMAGES).read_text(encoding="utf-8"))
    return Prepared(folder, tuple(labels), images)


def digest_of_learnt(folder: Path) -> str:
    """SHA-256 (hex) over all that a training reads of such an output: not the test split.

    Args:
        folder: The output, which is complete.
    """
    form = [(folder / name).read_text(encoding="utf-8") for name in (LABELS, IMAGES)]
    return json_digest([form, *(list_files(folder / split) for split in ("train", "val"))])


def has_embeddings(workload: "Workload") -> bool:
    """Whether the workload's network is a head on embeddings."""
    return workload.model.family == "embedding_head"


def prepared_by(workload: "Workload") -> str:
    """The name of the step whose output training and evaluation take."""
    return "embed" if has_embeddings(workload) else "preprocess"
