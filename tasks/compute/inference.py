"""Runs a model over prepared images in batches: in threads of this process, or on a cluster.

Both ways give the same result: the rows of a forward pass depend only on the batch size, and one
thread calculates each pass.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import models
from tasks.compute import ray_data
from tasks.data.shards import Shards

# The probabilities, float32 (images, classes), and the features, float32 (sampled images, D); None
# if there are none, or they are not known.
Answers = tuple[NDArray[np.float32], NDArray[np.float32] | None]


def predict(
    model: Path, images: Shards, batch_size: int, precision: str, sampled: Sequence[int] = ()
) -> Iterator[Answers]:
    """Runs a model over a split, on all GPUs, or on the CPUs if there are none.

    The images are never in memory as a whole.

    Args:
        model: A folder that `models.save` wrote.
        images: The prepared images of the split.
        batch_size: Images per forward pass.
        precision: `fp32` or `bf16`, of the matrix products.
        sampled: The rows of which the features are wanted, too, in ascending order.

    Yields:
        The answers for each batch, in the order of the split.
    """

    def load(device: str) -> Callable[[int], Answers]:
        import torch

        from models.network import FeatureExtractor

        network = models.load(model).module.to(device)
        network.prefer_attention(torch.device(device).type, precision)
        observed = FeatureExtractor(network)

        def answer(first: int) -> Answers:
            torch.set_num_threads(ray_data.THREADS)
            rows = np.arange(first, min(first + batch_size, len(images)))
            pixels = torch.from_numpy(images[rows]).to(device)
            probabilities, features = observed.answer(pixels, precision)
            wanted = [row - first for row in sampled if first <= row <= rows[-1]]
            known = features[wanted].cpu().numpy() if features is not None and wanted else None
            return probabilities.cpu().numpy(), known

        return answer

    batches = range(0, len(images), batch_size)
    seconds = len(images) * ray_data.SECONDS_PER_IMAGE
    return ray_data.each(load, batches, seconds=seconds, on_gpus=True)
