"""The prepared images on disk, as `preprocess` writes them and training and evaluation read them.

- `labels.json`: the class names by index
- `images.json`: `size`, `channels` and `resize`: what every image was made into
- `<split>/images-00000.npy` and on: uint8 (N, H, W, C) each, one after the other in row order
- `<split>/labels.npy`: int64 (rows,), the index of each row's class
- `<split>/rows.parquet`: path, label, sha256, file, row: where each row comes from

The splits are train, val and test, and none is empty.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

LABELS = "labels.json"
IMAGES = "images.json"
ROWS = "rows.parquet"


def shard_name(number: int) -> str:
    """The file name of a split's shard, counted from 0; the names sort in row order."""
    return f"images-{number:05d}.npy"


class Shards:
    """The images of a split, left on disk: only the rows that are asked for are read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Opens the shards.

        Args:
            paths: `.npy` files of uint8 (N, H, W, C), at least one, in row order.
        """
        import numpy as np

        self._shards: list[NDArray[np.uint8]] = [np.load(path, mmap_mode="r") for path in paths]
        self._ends = np.cumsum([len(shard) for shard in self._shards])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        height, width, channels = self._shards[0].shape[1:]
        return height, width, channels

    def __getitem__(self, rows: "NDArray[np.int64]") -> "NDArray[np.uint8]":
        """Copies images into memory.

        Args:
            rows: int64 (n,), row indices of the split, from 0, in any order.

        Returns:
            uint8 (n, H, W, C), in the order of `rows`.
        """
        import numpy as np

        assert not len(rows) or rows.min() >= 0, "a negative row would be taken from a shard's end"
        images = np.empty((len(rows), *self.shape), np.uint8)
        owners = np.searchsorted(self._ends, rows, side="right")
        for owner in np.unique(owners):
            shard = self._shards[owner]
            mine = np.flatnonzero(owners == owner)
            images[mine] = shard[rows[mine] - (self._ends[owner] - len(shard))]
        return images


@dataclass(frozen=True)
class PreparedSplit:
    """One split: the same row has the same place in all of it.

    Attributes:
        images: The pixels.
        labels: int64 (rows,), class indices.
        folder: Where it lies.
    """

    images: Shards
    labels: "NDArray[np.int64]"
    folder: Path

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def rows(self) -> "pd.DataFrame":
        """Where each row comes from: path, label (the name), sha256, file, row."""
        import pandas as pd

        return pd.read_parquet(self.folder / ROWS)


@dataclass(frozen=True)
class Prepared:
    """The output of `preprocess`. To hand it to another process, hand over the folder.

    Attributes:
        folder: The artifact's folder.
        labels: The class names by index.
        images: `size`, `channels` and `resize`, as `models.image.to_array` takes them.
    """

    folder: Path
    labels: tuple[str, ...]
    images: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self.images["size"], self.images["size"], self.images["channels"]

    def split(self, name: str) -> PreparedSplit:
        """Opens `train`, `val` or `test`."""
        import numpy as np

        folder = self.folder / name
        shards = Shards(sorted(folder.glob("images-*.npy")))
        return PreparedSplit(shards, np.load(folder / "labels.npy"), folder)


def open_prepared(folder: Path) -> Prepared:
    """Opens the output of `preprocess`.

    Args:
        folder: The artifact's folder.
    """
    labels = json.loads((folder / LABELS).read_text(encoding="utf-8"))
    images = json.loads((folder / IMAGES).read_text(encoding="utf-8"))
    return Prepared(folder, tuple(labels), images)
