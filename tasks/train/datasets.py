"""Prepared images as a map-style dataset of PyTorch, for a loop that has a `DataLoader`."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset, get_worker_info

from tasks.data.shards import PreparedSplit, open_prepared

if TYPE_CHECKING:
    from torch import Tensor

    Example = tuple[Tensor, int]


class SplitDataset(Dataset["Example"]):
    """The images of a split with their classes' indices; cheap to send to another process."""

    def __init__(
        self,
        folder: Path,
        split: str,
        memory_gb: float,
        transform: "Callable[[Tensor], Tensor] | None" = None,
    ) -> None:
        """Opens nothing yet.

        Args:
            folder: The output of `preprocess`.
            split: `train`, `val` or `test`.
            memory_gb: Images that fit into it are read once, and stay in memory; of a `DataLoader`
                that has processes, each has its share of it.
            transform: Called with uint8 images (N, H, W, C); what it returns has N items.
        """
        self._folder, self._name, self._transform = folder, split, transform
        self._memory_gb = memory_gb

    @cached_property
    def _split(self) -> PreparedSplit:
        return open_prepared(self._folder).split(self._name)

    @cached_property
    def _images(self) -> Any:
        """Gives uint8 (n, H, W, C) for int64 (n,)."""
        import numpy as np

        images, loader = self._split.images, get_worker_info()
        copies = loader.num_workers if loader else 1
        if copies * len(images) * images.bytes_per_image > self._memory_gb * 1e9:
            return images
        return images[np.arange(len(images))]

    def loaded(self) -> "SplitDataset":
        """Reads what fits into memory now, which a `DataLoader` shares with its processes."""
        assert self._images is not None
        return self

    def __getstate__(self) -> dict[str, Any]:
        opened = ("_split", "_images")
        return {name: value for name, value in vars(self).items() if name not in opened}

    def __len__(self) -> int:
        return len(self._split)

    def __getitem__(self, index: int) -> "Example":
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> "list[Example]":
        """Several at once, which a `DataLoader` asks for: they are read and transformed together.

        Returns:
            For each, what the transform makes of uint8 (H, W, C), and the index of its class.
        """
        import numpy as np
        import torch

        rows = np.asarray(indices, np.int64)
        images = torch.from_numpy(self._images[rows])
        if self._transform:
            images = self._transform(images)
        return list(zip(images, self._split.labels[rows].tolist(), strict=True))
