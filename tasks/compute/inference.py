"""Runs a model over prepared images in batches: in this process, or by a pool of Ray's actors.

Both ways give the same result: the rows of a forward pass depend only on the batch size, and one
thread calculates each pass. Each worker reads the images from the shards itself.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
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

    def rows(self, number: int) -> NDArray[np.int64]:
        """The rows of a batch, by its number from 0."""
        start = number * self.batch_size
        return np.arange(start, min(start + self.batch_size, len(self.images)))


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

        rows = self._job.rows(number)
        pixels = torch.from_numpy(self._job.images[rows]).to(self._device)
        probabilities, features = self._observed.answer(pixels, self._job.precision)
        sampled = [row - rows[0] for row in self._job.sampled if rows[0] <= row <= rows[-1]]
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
    numbers, make = range(-(-len(job.images) // job.batch_size)), partial(_Predictor, job)
    in_actors = ray_cluster.is_remote() and ray_data.cpus() > 0
    run = ray_data.in_actors if in_actors else ray_data.in_threads
    with closing(run(make, numbers)) as answers:
        rows = chain.from_iterable(_probabilities(answers, features, done))
        while chunk_rows := list(islice(rows, chunk)):
            yield np.stack(chunk_rows)


def _probabilities(
    answers: Iterable[_Answers],
    features: list[NDArray[np.float32]] | None,
    done: Callable[[int], object],
) -> Iterator[NDArray[np.float32]]:
    """Yields the probabilities of each batch, and appends its features to `features`."""
    for probabilities_of_batch, batch_features in answers:
        if features is not None and batch_features is not None:
            features.append(batch_features)
        done(len(probabilities_of_batch))
        yield probabilities_of_batch
