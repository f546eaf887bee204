"""Loads the images of every batch with PyTorch's `DataLoader`, prepared by Ray Train.

The batches are the same as those of `ingest.py` and `stream_ingest.py`, in the same order.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ray.train.torch import prepare_data_loader
from torch.utils.data import DataLoader

from tasks.train.datasets import SplitDataset
from tasks.train.sampler import BatchSampler

if TYPE_CHECKING:
    from tasks.train.ingest import Batch


def _ignore_ctrl_c(_: int) -> None:
    """Leaves Ctrl-C to the training, which still needs images until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class DataLoaderIngest:
    """One worker's part of the batches of the training split."""

    def __init__(
        self, images: Path, batches: BatchSampler, memory_gb: float, processes: int
    ) -> None:
        """Makes the `DataLoader`.

        Args:
            images: The output of `preprocess`.
            batches: Which images make up each batch.
            memory_gb: Images that fit into it are read once, and stay in memory.
            processes: The number of processes that load images; with 0, the worker loads them.
        """
        self._batches = batches
        self._rows: list[list[int]] = []  # of each batch that is left of an epoch
        self._loader = prepare_data_loader(
            DataLoader(
                SplitDataset(images, "train", memory_gb),
                batch_sampler=self._rows,
                num_workers=processes,
                persistent_workers=processes > 0,
                worker_init_fn=_ignore_ctrl_c,
            ),
            add_dist_sampler=False,  # the rows are one worker's already
        )

    def epoch(self, epoch: int, first: int) -> "Iterator[Batch]":
        """The batches of an epoch; see `tasks.train.ingest.Ingest`."""
        self._rows[:] = self._batches.epoch(epoch)[first:].tolist()
        yield from map(tuple, self._loader)
