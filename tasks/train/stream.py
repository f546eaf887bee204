"""Streams training images that are not prepared: Ray Data decodes them while the network trains.

It is the way of Ray's guides: a trainer has a dataset, and each worker goes through its shard of it
in batches; a training without workers goes through the dataset itself. It has the images of all
epochs that are left, so that no epoch waits for a new plan, and a training that resumes begins with
the images that were left. One worker gets them in the order that the seed decides; several share
out what comes.

`preprocess` writes `source.json` for such a split: `image_column`, that of the data's Parquet
files, and `bytes`, the size of all its encoded images. `rows.parquet` lists the image of each row.
"""

import hashlib
import json
import pickle
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from ray.data import Dataset, from_items
from ray.exceptions import RayTaskError
from ray.train import get_dataset_shard

from models.image import cut_array, to_array
from tasks.compute.ray_data import connect
from tasks.data.raw_images import SECONDS_PER_BYTE, SECONDS_PER_IMAGE, ImageFiles
from tasks.data.shards import ROWS, SOURCE, open_prepared
from tasks.train.data_loading import CROP, SHUFFLE, Batch, BatchSampler, parts_of
from tasks.train.job import TrainingJob
from tasks.train.session import Session

NAME = "train"
# A Parquet file is read from a row group's first row on: so many rows stay together in the order of
# an epoch, and a task mixes those that it reads.
BLOCK = 8
TASK_SECONDS = 0.5  # of a core: much more than a task costs Ray Data


def of_trainer(job: TrainingJob) -> dict[str, Any]:
    """The arguments of Ray Train's trainer that bring the images.

    Ray Train calls the function whenever it starts the workers.
    """

    def images() -> Dataset:
        state = Session(job).latest(mapped=True)
        return _dataset(job, state["step"] if state else 0)

    return {"datasets": {NAME: images}}


def _dataset(job: TrainingJob, step: int) -> Dataset:
    """The decoded images of the training, from a step on."""
    connect()
    tasks = [*_Source(job).tasks(step)]
    dataset = from_items(tasks, override_num_blocks=min(len(tasks), 10_000))
    dataset.context.raise_original_map_exception = True
    return dataset.map_batches(partial(_decode, pickle.dumps(job)), batch_size=None)


def _decode(job: bytes, tasks: dict[str, NDArray[np.int64]]) -> Iterator[dict[str, Any]]:
    """Decodes the images of some tasks; runs in a process of Ray Data.

    Yields:
        `image`, uint8 (n, H, W, C), and `label`, int64 (n,).
    """
    columns = [tasks[name].tolist() for name in ("epoch", "first", "last")]
    for place in zip(*columns, strict=True):
        yield _source(job).decode(*place)


@lru_cache(maxsize=1)
def _source(job: bytes) -> "_Source":
    """The images of a training; kept for a process's next task."""
    return _Source(pickle.loads(job))


class _Source:
    """The training images as the data has them, and the order in which they are decoded."""

    def __init__(self, job: TrainingJob) -> None:
        """Reads the list of the images."""
        data = open_prepared(job.images)
        split, settings, workers = data.split("train"), job.hyperparameters, job.scale.workers
        self._form, self._labels = data.images, split.labels
        self._batches = BatchSampler(
            len(split), settings.batch_size, settings.seed, rank=0, workers=max(workers, 1)
        )
        self._epochs, self._least = settings.epochs, settings.augment.crop
        described = json.loads((split.folder / SOURCE).read_text(encoding="utf-8"))
        self._rows = pq.read_table(split.folder / ROWS, columns=["file", "row", "sha256"])
        self._files = ImageFiles(job.pulled / "data", described["image_column"])
        seconds = SECONDS_PER_IMAGE + SECONDS_PER_BYTE * described["bytes"] / len(split)
        self._per_task = max(1, int(TASK_SECONDS / seconds))

    def tasks(self, step: int) -> Iterator[dict[str, int]]:
        """Which images of which epoch each task decodes, from a step on."""
        batches, size = self._batches, self._batches.share * self._batches.workers
        end = batches.per_epoch * size
        for epoch in range(step // batches.per_epoch, self._epochs):
            begin = max(0, step - epoch * batches.per_epoch) * size
            for first in range(0, end, self._per_task):
                last = min(first + self._per_task, end)
                if begin < last:
                    yield {"epoch": epoch, "first": max(first, begin), "last": last}

    @lru_cache(maxsize=2)  # noqa: B019  there is one of it in a process
    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The rows of the split in an order of an epoch, int64 (rows,)."""
        random = np.random.default_rng((self._batches.seed, SHUFFLE, epoch))
        rows = np.arange(len(self._rows))
        if self._files.image_column is None:
            return random.permutation(rows)
        blocks = np.array_split(rows, range(BLOCK, len(rows), BLOCK))
        rows = np.concatenate([blocks[number] for number in random.permutation(len(blocks))])
        for first in range(0, len(rows), self._per_task):
            random.shuffle(rows[first : first + self._per_task])
        return rows

    def decode(self, epoch: int, first: int, last: int) -> dict[str, Any]:
        """Decodes the images of a task, in the order in which the data has them; see `_decode`.

        Raises:
            ValueError: An image is no longer what was checked.
        """
        size, channels, resize = (self._form[name] for name in ("size", "channels", "resize"))
        rows, parts = self._order(epoch)[first:last], None
        if self._least is not None:
            random = np.random.default_rng((self._batches.seed, CROP, epoch))
            parts = parts_of(random.random((last, 4))[first:], self._least)
        decoded = np.empty((len(rows), size, size, channels), np.uint8)
        order = np.argsort(rows)
        encoded = self._read(self._rows.take(rows[order]))
        for place, data in zip(order.tolist(), encoded, strict=True):
            if parts is None:
                decoded[place] = to_array(data, size, channels, resize)
            else:
                part = parts[place]
                decoded[place] = cut_array(data, size, channels, part.box, part.shorter_side)
        return {"image": decoded, "label": self._labels[rows]}

    def _read(self, rows: pa.Table) -> Iterator[bytes]:
        """The encoded images, if they are those that were checked.

        Raises:
            ValueError: An image is not the one that was checked.
        """
        files, numbers, digests = (rows[name].to_pylist() for name in rows.column_names)
        images = self._files.read(list(zip(files, numbers, strict=True)))
        for file, digest in zip(files, digests, strict=True):
            try:
                data = next(images, None)
                fault = "an image in it is gone" if data is None else "it has changed"
            except OSError as error:
                data, fault = None, error.strerror or str(error)
            if data is None or hashlib.sha256(data).hexdigest() != digest:
                raise ValueError(
                    f"{file} of the pulled data is no longer what was checked: {fault}. Run again; "
                    "if that does not help, check the disk for errors."
                )
            yield data


class Stream:
    """One worker's part of the batches of a training, with the methods of `data_loading.Loader`."""

    def __init__(
        self, job: TrainingJob, batches: BatchSampler, step: int, device: torch.device
    ) -> None:
        """Starts nothing yet.

        Args:
            job: The training.
            batches: The sampler, which says how many batches an epoch has, and how large.
            step: The optimizer steps so far.
            device: The device that needs the batches.
        """
        self._per_epoch = batches.per_epoch
        self._arriving = _arriving(job, batches.share, step, device)

    def epoch(self, epoch: int, first: int) -> Iterator[Batch]:
        """The next batches, which are those of an epoch."""
        yield from islice(self._arriving, self._per_epoch - first)

    def close(self) -> None:
        """Ends what still decodes images, which is much where a training ends early."""
        self._arriving.close()


def _arriving(job: TrainingJob, share: int, step: int, device: torch.device) -> Generator[Batch]:
    """The batches of this worker, on its device, as they come.

    Raises:
        ValueError: From a task, as it was raised there.
    """
    images = get_dataset_shard(NAME) if job.scale.workers else _dataset(job, step)
    arriving = images.iter_torch_batches(batch_size=share, drop_last=True, device=device)
    try:
        with closing(iter(arriving)) as batches:
            for batch in batches:
                yield batch["image"], batch["label"]
    except RayTaskError as error:
        if isinstance(error.cause, ValueError):
            # Ray Data adds lines about its own settings to the message.
            raise ValueError(str(error.cause).split("\n")[0]) from None
        raise error.cause from None
