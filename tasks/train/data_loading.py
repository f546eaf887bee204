"""Brings prepared images to a training: a map-style dataset, a sampler, and PyTorch's `DataLoader`.

The seed and the position in the training decide which images make up each batch, and which parts
are cut out of them, so that a resumed training gets the same batches, and workers agree without
communication.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tasks.data.shards import open_prepared

Batch = tuple[Tensor, Tensor]
# A separate stream of random numbers for each use.
SHUFFLE, AUGMENT, NETWORK, CROP = range(4)

# The sides of a part that is cut out of an image: width / height.
RATIO = (3 / 4, 4 / 3)
# Of a training on a GPU, which would wait for images. On a CPU they would take its cores.
PROCESSES = 2
# Numbers of a worker's batch from which on there are such processes. To hand small batches over
# takes longer than to read them: a ViT 192 x 6 with 64 images of 32 x 32 trained 1,400 to 1,900
# images/s on an H200 with them, and 2,400 to 2,600 without.
LARGE = 1_000_000


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


@dataclass(frozen=True)
class Part:
    """A part of an image, of any size of it.

    Attributes:
        area: The share of the image's area that the part has.
        ratio: Width to height, both in pixels. A part that would not fit is made smaller.
        x: Where it is in its free space, from 0 (left) to before 1 (right).
        y: Where it is in its free space, from 0 (top) to before 1 (bottom).
    """

    area: float
    ratio: float
    x: float
    y: float

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """The part's left, top, right and bottom in an image of a size, in pixels."""
        across = min((self.area * width * height * self.ratio) ** 0.5, width, self.ratio * height)
        w, h = max(1, round(across)), max(1, round(across / self.ratio))
        left, top = int(self.x * (width - w + 1)), int(self.y * (height - h + 1))
        return left, top, left + w, top + h

    @property
    def shorter_side(self) -> float:
        """Its shorter side, as a share of the image's shorter side, or less."""
        narrow = min(self.ratio, 1 / self.ratio)
        return float(min((self.area * narrow) ** 0.5, narrow))  # the second if it would not fit


@dataclass(frozen=True)
class BatchSampler:
    """The part of every batch that one worker trains on.

    The last batch of an epoch is left out if it is not full; fewer images than one batch make a
    smaller one.

    Attributes:
        rows: Images of the training split.
        size: Images of a batch, over all workers.
        seed: The seed of all random choices of the training.
        rank: The rank of this worker, from 0.
        workers: The number of workers.
        chances: float64 (rows,), how likely each image is drawn, to any scale; None when an epoch
            has every image once.
    """

    rows: int
    size: int
    seed: int
    rank: int
    workers: int
    chances: NDArray[np.float64] | None = None

    @property
    def per_epoch(self) -> int:
        """Batches of an epoch."""
        return max(1, self.rows // self.size)

    @property
    def share(self) -> int:
        """Images of a batch for this worker."""
        return min(self.size, self.rows) // self.workers

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """This worker's part of an epoch, in an order of that epoch.

        Args:
            epoch: From 0.

        Returns:
            int64 (batches, share), row indices of the training split.
        """
        random = np.random.default_rng((self.seed, SHUFFLE, epoch))
        if self.chances is None:
            order = random.permutation(self.rows)
        else:
            order = random.choice(self.rows, self.rows, p=self.chances / self.chances.sum())
        used = self.per_epoch * self.share * self.workers
        return order[:used].reshape(self.per_epoch, self.workers, self.share)[:, self.rank]

    def network_seeds(self, epoch: int) -> list[int]:
        """The seeds of the network's random choices (dropout), one for each batch of an epoch."""
        seeds = np.random.SeedSequence((self.seed, NETWORK, epoch, self.rank))
        return [int(seed) for seed in seeds.generate_state(self.per_epoch, np.uint64)]

    def parts(self, step: int, least: float) -> list[Part]:
        """The parts that are cut out of a worker's images, as Szegedy et al. (2015) do.

        Args:
            step: Optimizer steps before that of the batch.
            least: The smallest share of an image's area.

        Returns:
            A part for each image.
        """
        # Drawn for the whole batch: an image's part does not depend on the number of workers.
        random = np.random.default_rng((self.seed, CROP, step))
        return parts_of(random.random((self.workers, self.share, 4))[self.rank], least)


def parts_of(random: NDArray[np.float64], least: float) -> list[Part]:
    """Makes a part of each row of random numbers, (n, 4), from 0 to below 1."""
    areas = least + (1 - least) * random[:, 0]
    ratios = np.exp(np.interp(random[:, 1], (0, 1), np.log(RATIO)))
    values = (areas, ratios, random[:, 2], random[:, 3])
    return [Part(*part) for part in zip(*(column.tolist() for column in values), strict=True)]


def class_weights(labels: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """A weight for each class, larger for rarer ones; the mean over all images is 1.

    It is rows / (classes * images of the class), as scikit-learn's `balanced` (King and Zeng,
    2001).

    Args:
        labels: int64 (rows,), class indices; each class has at least one image.
        classes: How many classes there are.

    Returns:
        float64 (classes,).
    """
    return len(labels) / (classes * np.bincount(labels, minlength=classes))


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
        is_large = batches.share * prod(dataset.images.shape) >= LARGE
        processes = PROCESSES if device.type == "cuda" and is_large else 0
        self._loader = DataLoader(
            dataset,
            batch_size=None,  # the dataset is asked for a whole batch
            sampler=self._rows,
            num_workers=processes,
            persistent_workers=processes > 0,
            pin_memory=device.type == "cuda",
            worker_init_fn=_ignore_ctrl_c,
        )

    def close(self) -> None:
        """Nothing is left open: the processes end with the `DataLoader`."""

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
