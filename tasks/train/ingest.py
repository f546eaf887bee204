"""Loads the images of every batch from disk to the device, before the step that needs them.

Prepared images are read by position and never streamed: no plan runs in the training loop, and a
training can continue at any batch of any epoch. Images that fit into `scale.memory_gb` are read
once and stay in memory. Otherwise one window of the epoch's batches is in memory while the next one
is read.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tasks.compute.prefetch import prefetch
from tasks.data.shards import Prepared, PreparedSplit, StoredImages
from tasks.train.job import TrainingJob
from tasks.train.sampler import BatchSampler, Windows, class_weights

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


# The size of a read when not all images fit into memory: large enough for the full speed of a disk
# or a network, but small enough that a window has many blocks and is well shuffled.
BLOCK_BYTES = 2**20
BLOCKS_PER_WINDOW = 32

# Batches that are ready before they are needed, where a separate thread makes them.
BATCHES_AHEAD = 3

# Imported by their names, so that their code does not belong to a training without them.
DATALOADER = "tasks.train.dataloader_ingest"
STREAM = "tasks.train.stream_ingest"
CROPPING = "tasks.train.cropping"

Batch = tuple["Tensor", "Tensor"]


def windows(images: StoredImages, ingest: str, memory_gb: float, batch_size: int) -> Windows | None:
    """Plans the windows of a training that holds a part of the images at a time.

    They depend on all images and not on a worker's share, so that any number of workers trains on
    the same batches.

    Args:
        images: The images of the training split.
        ingest: The `ingest` of the training job.
        memory_gb: Memory for images, in 10^9 bytes.
        batch_size: Images of a batch, over all workers.

    Returns:
        None without windows.
    """
    budget = memory_gb * 1e9
    fits = len(images) * images.bytes_per_image <= budget
    if ingest == "dataloader" or (ingest == "auto" and fits):
        return None
    # Two windows are in memory: the one in use and the next one.
    batches = max(1, int(budget / 2 / images.bytes_per_image / batch_size))
    fast, mixed = BLOCK_BYTES / images.bytes_per_image, batches * batch_size / BLOCKS_PER_WINDOW
    return Windows(batches, block=max(1, int(min(fast, mixed))))


def sampler(job: TrainingJob, data: Prepared, rank: int, workers: int) -> BatchSampler:
    """Which training images make up each batch of one worker.

    Args:
        job: The training.
        data: The prepared images.
        rank: The rank of the worker, from 0.
        workers: The number of workers.
    """
    split, hyperparameters = data.split("train"), job.hyperparameters
    chances = None
    if hyperparameters.balance == "sampling":
        chances = class_weights(split.labels, len(data.labels))[split.labels]
    return BatchSampler(
        rows=len(split),
        size=hyperparameters.batch_size,
        seed=hyperparameters.seed,
        rank=rank,
        workers=workers,
        windows=windows(split.images, job.ingest, job.scale.memory_gb, hyperparameters.batch_size),
        chances=chances,
    )


def open_ingest(
    job: TrainingJob,
    images: PreparedSplit,
    batches: BatchSampler,
    device: "torch.device",
    opened: ExitStack,
) -> Any:
    """Opens what gives a worker the batches of each epoch: an `Ingest`, or an object like it.

    Args:
        job: The training.
        images: The training split.
        batches: Which images make up each batch.
        device: The device that needs the batches.
        opened: Gets what is to be closed after the training.
    """
    if job.ingest == "stream":
        arriving = import_module(STREAM).arriving(images, batches.rank)
        opened.enter_context(closing(arriving))
        images = replace(images, open_images=lambda: arriving)
    if job.ingest != "dataloader":
        return Ingest(images, batches, device)
    return import_module(DATALOADER).DataLoaderIngest(
        job.images, batches, job.scale.memory_gb, job.scale.data_cpus
    )


def cuts(batches: BatchSampler, first: int) -> list[tuple[int, int]]:
    """The windows of an epoch from a batch on; the first of them may be a part of one.

    Args:
        batches: A sampler with windows.
        first: The first batch, from 0.

    Returns:
        The first batch of each, and the one after its last.
    """
    assert batches.windows is not None
    size, count = batches.windows.batches, batches.per_epoch
    begins = range(0, count, size)
    return [(max(first, b), min(b + size, count)) for b in begins if b + size > first]


class Ingest:
    """One worker's part of the batches of a split."""

    def __init__(self, split: PreparedSplit, batches: BatchSampler, device: "torch.device") -> None:
        """Reads the images, if all fit into memory.

        Args:
            split: The split to train on.
            batches: Which images make up each batch.
            device: The device that needs the batches.
        """
        import numpy as np

        self._split, self._batches, self._device = split, batches, device
        self._held = None if batches.windows else split.images[np.arange(len(split))]

    def epoch(self, epoch: int, first: int) -> Iterator[Batch]:
        """The batches of an epoch.

        Args:
            epoch: From 0.
            first: The first batch of the epoch to yield, from 0.

        Yields:
            uint8 (share, H, W, C) and int64 (share,), images and labels, on the device.
        """
        rows = self._batches.epoch(epoch)
        if self._held is not None:
            yield from self._ready(self._held, rows[first:], rows[first:])
            return
        cut = [rows[begin:end] for begin, end in cuts(self._batches, first)]
        for loaded, places, in_window in prefetch(self._load, cut, results=1):
            yield from self._ready(loaded, places, in_window)

    def _load(self, rows: "NDArray[np.int64]") -> tuple[Any, "NDArray[np.int64]", Any]:
        """Reads the images of a window in the order in which they are on disk."""
        import numpy as np

        # Each of an image's places in a window gets the part that was drawn for it.
        order = np.argsort(rows, axis=None, kind="stable")
        places = np.empty(rows.size, np.int64)
        places[order] = np.arange(rows.size)
        return self._split.images[rows.reshape(-1)[order]], places.reshape(rows.shape), rows

    def _ready(
        self, loaded: Any, places: "NDArray[np.int64]", rows: "NDArray[np.int64]"
    ) -> Iterator[Batch]:
        """Yields batches of images that are in memory.

        Args:
            loaded: Gives uint8 (n, H, W, C) for int64 (n,).
            places: int64 (batches, share), index of each image in `loaded`.
            rows: int64 (batches, share), index of each image in the split.
        """

        def gather(number: int) -> Batch:
            return (
                _tensor(loaded[places[number]], self._device),
                _tensor(self._split.labels[rows[number]], self._device),
            )

        yield from _on_device(gather, len(rows), self._device)


def in_order(
    split: PreparedSplit, rows: range, size: int, device: "torch.device"
) -> Iterator[Batch]:
    """Successive rows of a split in batches as `Ingest.epoch` gives them; the last has the rest."""
    import numpy as np

    def read(number: int) -> Batch:
        batch_rows = np.asarray(rows[number * size : (number + 1) * size], np.int64)
        return _tensor(split.images[batch_rows], device), _tensor(split.labels[batch_rows], device)

    yield from _on_device(read, -(-len(rows) // size), device)


def _on_device(make: Any, count: int, device: "torch.device") -> Iterator[Batch]:
    """Numbered batches on the device, made by a separate thread where that is faster.

    It is on a GPU, which would wait for the copies. For a copy within memory, a second Python
    thread costs more than it saves.
    """
    on_gpu = device.type == "cuda"
    batches = prefetch(make, range(count), BATCHES_AHEAD) if on_gpu else map(make, range(count))
    for images, labels in batches:
        yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def _tensor(array: "NDArray[np.generic]", device: "torch.device") -> "Tensor":
    """A tensor of an array; pinned for a GPU, which can then copy it while it computes."""
    import torch

    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor
