"""Runs a model over prepared images in batches: in threads of this process, or on a cluster.

Both ways give the same result: the rows of a forward pass depend only on the batch size, and one
thread calculates each pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import models
from tasks.compute import ray_data
from tasks.data.shards import StoredImages

if TYPE_CHECKING:
    from models.network import Observed


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
    rows: list[NDArray[np.float32]] = []
    batches = range(0, len(job.images), job.batch_size)
    seconds = len(job.images) * ray_data.SECONDS_PER_IMAGE
    answers = ray_data.each(partial(_load, job), batches, seconds=seconds, on_gpus=True)
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


# The probabilities, float32 (rows, classes), and the features, float32 (sampled rows, D); None if
# there are none, or they are not known.
_Answers = tuple[NDArray[np.float32], NDArray[np.float32] | None]


def _load(job: PredictionJob, device: str) -> Callable[[int], _Answers]:
    """Loads the model on a device."""
    import torch

    from models.network import Observed

    module = models.load(job.model).module.to(device)
    module.prefer_attention(torch.device(device).type, job.precision)
    return partial(_answer, job, Observed(module), device)


def _answer(job: PredictionJob, model: "Observed", device: str, first: int) -> _Answers:
    """Runs the model on the batch that begins with a row."""
    import torch

    torch.set_num_threads(ray_data.THREADS)
    rows = np.arange(first, min(first + job.batch_size, len(job.images)))
    pixels = torch.from_numpy(job.images[rows]).to(device)
    probabilities, features = model.answer(pixels, job.precision)
    sampled = [row - first for row in job.sampled if first <= row <= rows[-1]]
    sampled_features = features[sampled].cpu().numpy() if features is not None and sampled else None
    return probabilities.cpu().numpy(), sampled_features
