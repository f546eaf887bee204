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
from tasks.data.shards import Shards

if TYPE_CHECKING:
    from models.network import Observed


@dataclass(frozen=True)
class PredictionJob:
    """Which images a model predicts, and how.

    The images are never in memory as a whole.

    Attributes:
        model: A folder that `models.save` wrote.
        images: The prepared images of a split.
        batch_size: Images per forward pass.
        precision: `fp32` or `bf16`, of the matrix products.
        sampled: The rows of which the features are wanted, too, in ascending order.
    """

    model: Path
    images: Shards
    batch_size: int
    precision: str
    sampled: tuple[int, ...] = ()


# The probabilities, float32 (images, classes), and the features, float32 (sampled images, D); None
# if there are none, or they are not known.
Answers = tuple[NDArray[np.float32], NDArray[np.float32] | None]


def predict(job: PredictionJob) -> Iterator[Answers]:
    """Runs a model over a split, on all GPUs, or on the CPUs if there are none.

    Yields:
        The answers for each batch, in the order of the split.
    """
    batches = range(0, len(job.images), job.batch_size)
    seconds = len(job.images) * ray_data.SECONDS_PER_IMAGE
    return ray_data.each(partial(_load, job), batches, seconds=seconds, on_gpus=True)


def _load(job: PredictionJob, device: str) -> Callable[[int], Answers]:
    """Loads the model on a device."""
    import torch

    from models.network import Observed

    module = models.load(job.model).module.to(device)
    module.prefer_attention(torch.device(device).type, job.precision)
    return partial(_answer, job, Observed(module), device)


def _answer(job: PredictionJob, model: "Observed", device: str, first: int) -> Answers:
    """Runs the model on the batch that begins with a row."""
    import torch

    torch.set_num_threads(ray_data.THREADS)
    rows = np.arange(first, min(first + job.batch_size, len(job.images)))
    pixels = torch.from_numpy(job.images[rows]).to(device)
    probabilities, features = model.answer(pixels, job.precision)
    sampled = [row - first for row in job.sampled if first <= row <= rows[-1]]
    sampled_features = features[sampled].cpu().numpy() if features is not None and sampled else None
    return probabilities.cpu().numpy(), sampled_features
