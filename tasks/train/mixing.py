"""Mixes training images with others of their batch, and their labels in the same shares."""

import numpy as np
import torch
from torch import Tensor

from retrain.workload import Augment
from tasks.train.augment import Targets


def mix(
    images: Tensor, labels: Tensor, changes: Augment, random: np.random.Generator
) -> tuple[Tensor, Targets]:
    """Mixes each image with another one, by mixup or cutmix; with both, one of them at random.

    Mixup (Zhang et al., 2018) adds the pixels; cutmix (Yun et al., 2019, appendix A) replaces a
    rectangle. The share is drawn from Beta(alpha, alpha), once for the batch.

    Args:
        images: uint8 or float32 (N, H, W, C).
        labels: int64 (N,).
        changes: The alphas; at least one is given.
        random: Draws.

    Returns:
        float32 (N, H, W, C), to the same scale, and the labels.
    """
    kinds = (("mixup", changes.mixup), ("cutmix", changes.cutmix))
    alphas = [(kind, alpha) for kind, alpha in kinds if alpha is not None]
    kind, alpha = alphas[int(random.integers(len(alphas)))]
    share = random.beta(alpha, alpha)
    others = torch.from_numpy(random.permutation(len(images))).to(images.device)
    pixels = images.float()
    if kind == "mixup":
        pixels = torch.lerp(pixels[others], pixels, share)
    else:
        pixels = pixels.clone()
        height, width = images.shape[1:3]
        rows, columns = _rectangle(height, width, 1 - share, random)
        pixels[:, rows, columns] = pixels[others][:, rows, columns]
        replaced = (rows.stop - rows.start) * (columns.stop - columns.start)
        share = 1 - replaced / (height * width)
    return pixels, ((labels, share), (labels[others], 1 - share))


def _rectangle(
    height: int, width: int, area: float, random: np.random.Generator
) -> tuple[slice, slice]:
    """Rows and columns of a rectangle with a share of the image's area, cut off at its edge."""
    sides = []
    for side in (height, width):
        centre, half = int(random.integers(side)), side * area**0.5 / 2
        sides.append(slice(max(0, round(centre - half)), min(side, round(centre + half))))
    return sides[0], sides[1]
