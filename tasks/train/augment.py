"""Augments the training images; the seed and the step decide the random changes."""

from typing import TYPE_CHECKING

from retrain.workload import Augment
from tasks.train.sampler import AUGMENT, BatchSampler

if TYPE_CHECKING:
    from torch import Tensor


def augment(images: "Tensor", changes: Augment, sampler: BatchSampler, step: int) -> "Tensor":
    """Mirrors and shifts images at random, on the device that they are on.

    Args:
        images: uint8 (N, H, W, C), this worker's part of a batch; N is its share, or less in a last
            batch that is not full.
        changes: Which changes.
        sampler: The sampler of the batch.
        step: Optimizer steps before this one.

    Returns:
        uint8 (N, H, W, C).
    """
    if not changes.flip and not changes.shift:
        return images
    import numpy as np
    import torch

    # Drawn for the whole batch: an image's change does not depend on the number of workers.
    random = np.random.default_rng((sampler.seed, AUGMENT, step))
    whole, rank = (sampler.workers, sampler.share), sampler.rank
    shifts = random.integers(-changes.shift, changes.shift + 1, (2, *whole))[:, rank, : len(images)]
    flips = random.integers(0, 1 + changes.flip, whole)[rank, : len(images)]
    _, height, width, _ = images.shape
    y = (np.arange(height) + shifts[0][:, None]).clip(0, height - 1)
    x = (np.arange(width) + shifts[1][:, None]).clip(0, width - 1)
    x = np.where(flips[:, None], width - 1 - x, x)
    pixels = torch.from_numpy(y[:, :, None] * width + x[:, None, :]).to(images.device)
    flat = images.flatten(1, 2)
    return flat.gather(1, pixels.flatten(1)[:, :, None].expand(flat.shape)).view(images.shape)
