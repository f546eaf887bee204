"""Brings prepared images to a training: a map-style dataset, and PyTorch's `DataLoader` over it."""

import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tasks.data.shards import open_prepared
from tasks.train.sampler import BatchSampler

Batch = tuple[Tensor, Tensor]
# Of a training on a GPU, which would wait for images. On a CPU they would take its cores.
PROCESSES = 2


class SplitDataset(Dataset[Any]):
    """The images of a split with their classes' indices, mapped from disk.

    A position gives one example, as PyTorch expects it; an array of them a batch.
    """

    def __init__(
        self, folder: Path, split: str, transform: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Opens the split.

        Args:
            folder: The output of `preprocess` or `embed`.
            split: `train`, `val` or `test`.
            transform: Called with uint8 images (N, H, W, C); what it returns has N items.
        """
        opened = open_prepared(folder).split(split)
        self.images, self.labels, self._transform = opened.images, opened.labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: int | NDArray[np.int64]) -> Any:
        """An example: what the transform makes of uint8 (H, W, C), and the index of its class.

        Of an array of rows (N,) it is both for N images: (N, …) and int64 (N,).
        """
        several = np.atleast_1d(np.asarray(rows, np.int64))
        images, labels = torch.from_numpy(self.images[several]), self.labels[several]
        if self._transform:
            images = self._transform(images)
        if np.ndim(rows) == 0:
            return images[0], int(labels[0])
        return images, torch.from_numpy(labels)

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Several examples at once, which a `DataLoader` asks for."""
        images, labels = self[np.asarray(rows)]
        return list(zip(images, labels.tolist(), strict=True))


class Loader:
    """One worker's part of the batches of the training split."""

    def __init__(self, dataset: SplitDataset, batches: BatchSampler, device: torch.device) -> None:
        """Makes the `DataLoader`.

        Args:
            dataset: The training split.
            batches: Which images make up each batch.
            device: The device that needs the batches.
        """
        self._batches, self._device = batches, device
        self._rows: list[NDArray[np.int64]] = []  # of each batch that is left of an epoch
        on_gpu = device.type == "cuda"
        self._loader = DataLoader(
            dataset,
            batch_size=None,  # the dataset is asked for a whole batch
            sampler=self._rows,
            num_workers=PROCESSES if on_gpu else 0,
            persistent_workers=on_gpu,
            pin_memory=on_gpu,
            worker_init_fn=_ignore_ctrl_c,
        )

    def epoch(self, epoch: int, first: int) -> Iterator[Batch]:
        """The batches of an epoch.

        Args:
            epoch: From 0.
            first: The first batch of the epoch to yield, from 0.

        Yields:
            uint8 (share, H, W, C) and int64 (share,), images and labels, on the device.
        """
        self._rows[:] = self._batches.epoch(epoch)[first:]
        for images, labels in self._loader:
            yield (
                images.to(self._device, non_blocking=True),
                labels.to(self._device, non_blocking=True),
            )


def _ignore_ctrl_c(_: int) -> None:
    """Leaves Ctrl-C to the training, which still needs images until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def in_order(
    dataset: SplitDataset, rows: range, size: int, device: torch.device
) -> Iterator[Batch]:
    """Successive rows of a split in batches as `Loader.epoch` gives them; the last has the rest."""
    for first in range(rows.start, rows.stop, size):
        images, labels = dataset[np.arange(first, min(first + size, rows.stop))]
        yield images.to(device), labels.to(device)
