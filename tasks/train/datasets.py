"""Gives prepared images as a map-style dataset of PyTorch, for a loop with a `DataLoader`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tasks.data.shards import open_prepared

Example = tuple[Tensor, int]


class SplitDataset(Dataset[Example]):
    """The images of a split with their classes' indices.

    The processes of a `DataLoader` share what is in memory, where they are forks.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        memory_gb: float,
        transform: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Opens the split.

        Args:
            folder: The output of `preprocess`.
            split: `train`, `val` or `test`.
            memory_gb: Images that fit into it are read now, and stay in memory.
            transform: Called with uint8 images (N, H, W, C); what it returns has N items.
        """
        opened = open_prepared(folder).split(split)
        self._labels, self._transform = opened.labels, transform
        self._images: Any = opened.images  # gives uint8 (n, H, W, C) for int64 (n,)
        if len(opened) * opened.images.bytes_per_image <= memory_gb * 1e9:
            self._images = opened.images[np.arange(len(opened))]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Example:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Several at once, which a `DataLoader` asks for: they are read and transformed together.

        Returns:
            For each, what the transform makes of uint8 (H, W, C), and the index of its class.
        """
        rows = np.asarray(indices, np.int64)
        images = torch.from_numpy(self._images[rows])
        if self._transform:
            images = self._transform(images)
        return list(zip(images, self._labels[rows].tolist(), strict=True))
