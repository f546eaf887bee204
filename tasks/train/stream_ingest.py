"""Streams training images that are not prepared: Ray Data decodes them while the network trains.

Each worker has a dataset of its own, which Ray Train gives it. Its rows say only which part of
which window of the sampler to decode, for all steps that are left, so that no epoch waits for a new
plan and a training that resumes begins with the step where it was. Tasks read the data in the order
in which it lies on disk, and the worker puts a window together, as it does with prepared images.
The order of training is thus that of `scale.ingest: windows`.

A task waits in Ray for a free CPU. If the workers' and the tasks' CPUs did not fit into the cluster
together, the training would wait forever, and say nothing: the tasks get no more than is left.
"""

import math
import pickle
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import lru_cache, partial
from importlib import import_module
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, cast

from retrain.servers.ray_cluster import is_remote
from tasks.compute.ray_data import connect
from tasks.data.shards import PreparedSplit, open_prepared
from tasks.data.source_images import SourceImages
from tasks.train import checkpoint, elsewhere
from tasks.train.ingest import CROPPING, cuts, sampler
from tasks.train.job import TrainingJob
from tasks.train.sampler import BatchSampler

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from ray.data import DataIterator, Dataset
    from ray.train import ScalingConfig

# Where the rows of an item are: in the sampler's batches `begin` to `end` of an epoch, in order of
# the rows, from `first` to before `last`.
ITEM = ("epoch", "begin", "end", "first", "last")
ITEM_SECONDS = 0.5  # of a core: much more than an item costs Ray Data

# Ray Data keeps a small object for each of its tasks; in a longer training, a task has more items.
MOST_TASKS = 10_000
BLOCK_BYTES = 2**23  # of decoded images in the object store
CPU_DIGITS = 1e4  # Ray counts CPUs to four places


def of_trainer(job: TrainingJob, scaling: "ScalingConfig") -> dict[str, Any]:
    """The arguments of Ray Train's trainer that bring the images.

    Args:
        job: The training.
        scaling: The workers of the training.
    """
    from ray.train import DataConfig

    workers = max(scaling.num_workers, 1)
    cpus_of_worker = scaling.resources_per_worker["CPU"] if scaling.num_workers else None
    datasets: dict[str, Callable[[], Dataset]] = {
        _name(rank): partial(_dataset, job, rank, workers, cpus_of_worker, is_remote())
        for rank in range(workers)
    }
    # Ray Train calls the functions whenever it starts the workers, also after one was lost.
    return {"datasets": datasets, "dataset_config": DataConfig(datasets_to_split=[])}


def arriving(split: PreparedSplit, rank: int) -> "ArrivingImages":
    """The training images of a worker, which Ray Data decodes.

    Args:
        split: A split with images that are not prepared.
        rank: The rank of the worker.
    """
    from ray.train import get_dataset_shard

    return ArrivingImages(get_dataset_shard(_name(rank)), split.images.shape, len(split))


class ArrivingImages:
    """Images that come in the order in which they are loaded, and in no other."""

    def __init__(self, shard: "DataIterator", shape: tuple[int, ...], rows: int) -> None:
        """Starts nothing yet.

        Args:
            shard: The worker's dataset.
            shape: Height, width and channels of every image.
            rows: The number of images of the split.
        """
        self.shape, self._rows = shape, rows
        self.bytes_per_image: float = math.prod(shape)
        self._blocks = _blocks(shard)
        self._rest: tuple[NDArray[np.uint8], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, rows: "NDArray[np.int64]") -> "NDArray[np.uint8]":
        """Waits for the next images.

        Args:
            rows: int64 (n,), which they are.

        Returns:
            uint8 (n, H, W, C).

        Raises:
            ValueError: One can no longer be read.
        """
        import numpy as np

        images = np.empty((len(rows), *self.shape), np.uint8)
        filled = 0
        while filled < len(rows):
            block, block_rows = self._rest or next(self._blocks)
            count = min(len(block_rows), len(rows) - filled)
            assert np.array_equal(block_rows[:count], rows[filled : filled + count]), (
                "another order"
            )
            images[filled : filled + count] = block[:count]
            filled += count
            self._rest = (block[count:], block_rows[count:]) if count < len(block_rows) else None
        return images

    def close(self) -> None:
        """Ends what still decodes images, which is much where a training ends early."""
        self._blocks.close()


def _name(rank: int) -> str:
    return f"train-{rank}"


def _blocks(shard: "DataIterator") -> "Generator[tuple[NDArray[np.uint8], NDArray[np.int64]]]":
    """Decoded images and their rows, as they come.

    Raises:
        ValueError: From a task, as it was raised there.
    """
    from ray.exceptions import RayTaskError

    batches = shard.iter_torch_batches(batch_size=None, prefetch_batches=1, device="cpu")
    try:
        with closing(iter(batches)) as blocks:
            for batch in blocks:
                yield batch["image"].numpy(), batch["row"].numpy()
    except RayTaskError as error:
        if isinstance(error.cause, ValueError):
            # Ray Data adds lines about its own settings to the message.
            raise ValueError(str(error.cause).split("\n")[0]) from None
        raise error.cause from None


def _dataset(
    job: TrainingJob, rank: int, workers: int, cpus_of_worker: float | None, on_cluster: bool
) -> "Dataset":
    """The dataset of one worker, from the step of the last checkpoint on.

    Args:
        job: The training.
        rank: The rank of the worker.
        workers: The number of workers.
        cpus_of_worker: What Ray has given each worker; None for a training in this process, which
            takes no CPU of Ray's, but as much of the machine's.
        on_cluster: Whether Ray is that of `RAY_ADDRESS`, which only the step's process knows.
    """
    connect()
    import ray
    from ray.data import ExecutionResources, TaskPoolStrategy, from_items

    resources = ray.cluster_resources()
    cpus = resources.get("CPU", 1)
    free = (cpus - workers * cpus_of_worker) / workers if cpus_of_worker else cpus / 2
    tasks = job.scale.data_cpus or max(1, int(free))
    # A cluster's count of CPUs is late after a machine is lost, and tasks would wait for ever where
    # the workers have all that are left: there they wait for none.
    waited_for = 0 if on_cluster else max(0, free)
    cpus_per_task = min(1.0, math.floor(waited_for / tasks * CPU_DIGITS) / CPU_DIGITS)
    store_bytes = min(job.scale.memory_gb * 1e9 / 2, resources["object_store_memory"] / 2 / workers)

    described = pickle.dumps((job, rank, workers))
    items = [
        dict(zip(ITEM, item, strict=True))
        for item in _items(
            _open(job, rank, workers), checkpoint.newest(job.scratch, job.checkpoints)
        )
    ]
    source = from_items(items, override_num_blocks=min(len(items), MOST_TASKS))
    context = source.context
    context.target_max_block_size = BLOCK_BYTES
    context.raise_original_map_exception = True
    context.execution_options.resource_limits = ExecutionResources.for_limits(
        object_store_memory=store_bytes
    )
    return source.map_batches(
        partial(_decode, described),
        batch_size=None,
        compute=TaskPoolStrategy(size=tasks),
        num_cpus=cpus_per_task,
    )


def _items(opened: tuple[SourceImages, BatchSampler, int], step: int) -> Iterator[tuple[int, ...]]:
    """The items of all steps from one on, each about half a second's work."""
    images, batches, epochs = opened
    per_epoch = batches.per_epoch
    for epoch in range(step // per_epoch, epochs):
        for begin, end in cuts(batches, max(0, step - epoch * per_epoch)):
            rows = (end - begin) * batches.share
            parts = max(1, math.ceil(rows * images.seconds_per_image / ITEM_SECONDS))
            for first, last in pairwise(rows * part // parts for part in range(parts + 1)):
                yield epoch, begin, end, first, last


def _decode(described: bytes, items: "dict[str, NDArray[np.int64]]") -> Iterator[dict[str, Any]]:
    """Decodes the images of some items; runs in a task of Ray Data.

    Yields:
        `image`, uint8 (n, H, W, C), and `row`, int64 (n,), the index of each in the split.
    """
    import numpy as np

    images, _, _ = _opened(described)
    columns = [items[name].tolist() for name in ITEM]
    for epoch, begin, end, first, last in zip(*columns, strict=True):
        rows, parts = _window(described, epoch, begin, end)
        rows, parts = rows[first:last], None if parts is None else parts[first:last]
        decoded = images.decode(rows, parts)
        count = max(1, BLOCK_BYTES // math.prod(images.shape))
        for place in range(0, len(rows), count):
            chunk = rows[place : place + count]
            yield {"image": np.stack([*islice(decoded, len(chunk))]), "row": chunk}


@lru_cache(maxsize=1)
def _opened(described: bytes) -> tuple[SourceImages, BatchSampler, int]:
    """The images and the order of a training, and its epochs; kept for a process's next task."""
    job, rank, workers = pickle.loads(described)
    return _open(elsewhere.located(job), rank, workers)


def _open(job: TrainingJob, rank: int, workers: int) -> tuple[SourceImages, BatchSampler, int]:
    data = open_prepared(job.images, job.pulled)
    images = cast("SourceImages", data.split("train").images)
    return images, sampler(job, data, rank, workers), job.hyperparameters.epochs


@lru_cache(maxsize=2)
def _window(
    described: bytes, epoch: int, begin: int, end: int
) -> "tuple[NDArray[np.int64], NDArray[np.float64] | None]":
    """The rows of a worker in a window, int64 (rows,), ascending.

    The second value has the parts that are cut out of them, float64 (rows, 4); None without
    `augment.crop`.
    """
    import numpy as np

    _, batches, _ = _opened(described)
    rows = batches.epoch(epoch)[begin:end].reshape(-1)
    order = np.argsort(rows, kind="stable")
    least = pickle.loads(described)[0].hyperparameters.augment.crop
    if least is None:
        return rows[order], None
    draw = import_module(CROPPING).draw_parts
    steps = range(epoch * batches.per_epoch + begin, epoch * batches.per_epoch + end)
    return rows[order], np.concatenate([draw(least, batches, step) for step in steps])[order]
