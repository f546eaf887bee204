"""Batch inference over prepared images: in this process on one machine, by Ray Data on a cluster.

The result is the same: the rows of a forward pass depend on the batch size alone, and one thread
calculates each pass. The images and the probabilities are never in memory as a whole.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import models
from retrain.servers import ray_cluster
from tasks.compute import ray_data
from tasks.compute.prefetch import prefetch
from tasks.data.shards import open_prepared

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# PyTorch divides some sums among threads, so that results would depend on the machine's cores.
# Several forward passes at once use all cores, which is also faster.
THREADS = 1
# Enough to spread the work evenly; a task costs Ray about as much as a batch of a small network.
TASKS_PER_ACTOR = 16


@dataclass(frozen=True)
class PredictionJob:
    """Which images a model predicts, and how.

    Attributes:
        model: A folder that `models.save` wrote.
        images: The folder of the prepared images.
        split: `train`, `val` or `test`.
        batch_size: Images per forward pass.
        precision: `fp32` or `bf16`, of the matrix products.
    """

    model: Path
    images: Path
    split: str
    batch_size: int
    precision: str

    @property
    def batches(self) -> int:
        """How many forward passes it takes."""
        return -(-len(open_prepared(self.images).split(self.split)) // self.batch_size)


class _Predictor:
    """Runs a model on numbered batches of a split. Ray Data calls it in an actor."""

    def __init__(self, job: PredictionJob, device: str) -> None:
        import torch

        torch.set_num_threads(THREADS)
        self._job, self._device = job, torch.device(device)
        self._module = models.load(job.model).module.to(self._device)
        self._module.prefer_attention(self._device.type, job.precision)
        self._images = open_prepared(job.images).split(job.split).images

    def predict(self, number: int) -> "NDArray[np.float32]":
        import numpy as np
        import torch

        start = number * self._job.batch_size
        rows = np.arange(start, min(start + self._job.batch_size, len(self._images)))
        pixels = torch.from_numpy(self._images[rows]).to(self._device)
        return self._module.probabilities(pixels, self._job.precision).cpu().numpy()

    def __call__(
        self, numbers: "dict[str, NDArray[np.int64]]"
    ) -> "Iterator[dict[str, NDArray[np.float32]]]":
        for number in numbers["id"]:
            yield {"probabilities": self.predict(int(number))}


def probabilities(job: PredictionJob, chunk: int) -> "Iterator[NDArray[np.float32]]":
    """Runs a model over a split, on all GPUs, or on the CPUs if there are none.

    Args:
        job: What is predicted.
        chunk: Rows per array that is returned.

    Yields:
        float32 (chunk, classes of the model), in the order of the split; the last has the rest.
    """
    if ray_cluster.is_remote():
        yield from _on_cluster(job, chunk)
    else:
        yield from _rechunked(_on_this_machine(job), chunk)


def _on_this_machine(job: PredictionJob) -> "Iterator[NDArray[np.float32]]":
    """Runs as many forward passes at once as there are cores, or one on each GPU.

    Yields:
        float32 (n, classes) for each batch, in order.
    """
    import torch
    from joblib import cpu_count

    gpus, threads = torch.cuda.device_count(), torch.get_num_threads()
    if gpus:
        predictors = [_Predictor(job, f"cuda:{gpu}") for gpu in range(gpus)]
    else:
        predictors = [_Predictor(job, "cpu")] * cpu_count()
    idle: SimpleQueue[_Predictor] = SimpleQueue()
    for predictor in predictors:
        idle.put(predictor)

    def predict(number: int) -> "NDArray[np.float32]":
        torch.set_num_threads(THREADS)  # applies to the calling thread alone
        predictor = idle.get()
        try:
            return predictor.predict(number)
        finally:
            idle.put(predictor)

    try:
        yield from prefetch(predict, range(job.batches), 2 * len(predictors), len(predictors))
    finally:
        torch.set_num_threads(threads)


def _on_cluster(job: PredictionJob, chunk: int) -> "Iterator[NDArray[np.float32]]":
    """Runs an actor on each GPU or CPU of the cluster.

    Only batch numbers and probabilities go through Ray. Each actor reads the pixels from the shards
    itself.
    """
    ray_data.connect()
    import ray
    import ray.data

    gpus = int(ray.cluster_resources().get("GPU", 0))
    actors = gpus or int(ray.cluster_resources()["CPU"])
    batches = job.batches
    numbers = ray.data.range(batches, override_num_blocks=min(batches, TASKS_PER_ACTOR * actors))
    predicted = numbers.map_batches(
        _Predictor,
        fn_constructor_args=(job, "cuda" if gpus else "cpu"),
        batch_size=None,
        num_cpus=None if gpus else 1,
        num_gpus=1 if gpus else None,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=min(actors, batches)),
    )
    for rows in predicted.iter_batches(batch_size=chunk, batch_format="numpy"):
        yield rows["probabilities"]


def _rechunked(
    arrays: "Iterable[NDArray[np.float32]]", rows: int
) -> "Iterator[NDArray[np.float32]]":
    """The rows of successive arrays, in arrays of `rows` rows; the last has the rest."""
    import numpy as np

    waiting: list[NDArray[np.float32]] = []
    count = 0
    for array in arrays:
        waiting.append(array)
        count += len(array)
        if count >= rows:
            whole = np.concatenate(waiting)
            full = count - count % rows
            yield from np.split(whole[:full], full // rows)
            waiting, count = [whole[full:].copy()], count - full
    if count:
        yield np.concatenate(waiting)
