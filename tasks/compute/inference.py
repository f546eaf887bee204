"""Runs a model over prepared images in batches: in this process, or by a pool of Ray's actors.

Both ways give the same result: the rows of a forward pass depend only on the batch size, and one
thread calculates each pass. Each worker reads the images from the shards itself.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import models
from retrain.servers import ray_cluster
from tasks.compute import ray_data
from tasks.data.shards import StoredImages


@dataclass(frozen=True)
class PredictionJob:
    """Which images a model predicts, and how.

    The images and the probabilities are never in memory as a whole.

    Attributes:
        model: A folder that `models.save` wrote.
        images: The prepared images of a split.
        batch_size: Images per forward pass.
        precision: `fp32` or `bf16`, of the matrix products.
        sampled: The rows of which the features are wanted, too, in ascending order.
    """

    model: Path
    images: StoredImages
    batch_size: int
    precision: str
    sampled: tuple[int, ...] = ()


# The probabilities, float32 (rows, classes), and the features, float32 (sampled rows, D); None if
# there are none, or they are not known.
_Answers = tuple[NDArray[np.float32], NDArray[np.float32] | None]


class _Predictor:
    """Runs a model on numbered batches of a split."""

    def __init__(self, job: PredictionJob, device: str) -> None:
        import torch

        from models.network import Observed

        torch.set_num_threads(ray_data.THREADS)
        self._job, self._device = job, torch.device(device)
        module = models.load(job.model).module.to(self._device)
        module.prefer_attention(self._device.type, job.precision)
        self._observed = Observed(module)

    def __call__(self, number: int) -> _Answers:
        import torch

        job, first = self._job, number * self._job.batch_size
        rows = np.arange(first, min(first + job.batch_size, len(job.images)))
        pixels = torch.from_numpy(job.images[rows]).to(self._device)
        probabilities, features = self._observed.answer(pixels, job.precision)
        sampled = [row - first for row in job.sampled if first <= row <= rows[-1]]
        sampled_features = (
            features[sampled].cpu().numpy() if features is not None and sampled else None
        )
        return probabilities.cpu().numpy(), sampled_features


def probabilities(
    job: PredictionJob,
    chunk: int,
    features: list[NDArray[np.float32]] | None = None,
    done: Callable[[int], object] = lambda rows: None,
) -> Iterator[NDArray[np.float32]]:
    """Runs a model over a split, on all GPUs, or on the CPUs if there are none.

    Args:
        job: What is predicted.
        chunk: Rows per array that is returned.
        features: Gets the features of the sampled rows, in arrays of some rows, in order; what the
            last layer takes, float32 (n, D). Gets none from a network whose last layer is not
            known.
        done: Called with the number of rows of each batch that has been predicted.

    Yields:
        float32 (chunk, classes of the model), in the order of the split; the last has the rest.
    """
    numbers = range(-(-len(job.images) // job.batch_size))
    in_cluster = ray_cluster.is_remote() and ray_data.cpus() > 0
    run = ray_data.in_actors if in_cluster else ray_data.in_threads
    rows: list[NDArray[np.float32]] = []
    with closing(run(partial(_Predictor, job), numbers)) as answers:
        for batch, batch_features in answers:
            if features is not None and batch_features is not None:
                features.append(batch_features)
            done(len(batch))
            rows += list(batch)
            while len(rows) >= chunk:
                yield np.stack(rows[:chunk])
                del rows[:chunk]
    if rows:
        yield np.stack(rows)
