"""Cuts random parts out of training images, as Szegedy et al. (2015) do, and scales them.

Of prepared images they are cut on the training's device; images that are streamed are cut before
they are scaled (`stream_ingest.py`). Both cut the same parts, except that prepared images have a
margin.
"""

from typing import TYPE_CHECKING

from models.image import Part
from tasks.train.sampler import CROP, BatchSampler

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

# The sides of a part: width / height.
RATIO = (3 / 4, 4 / 3)


def draw_parts(least: float, sampler: BatchSampler, step: int) -> "NDArray[np.float64]":
    """The parts of a worker's images in a batch.

    Args:
        least: The smallest share of an image's area.
        sampler: The sampler of the batch.
        step: Optimizer steps before this one.

    Returns:
        float64 (share, 4), the values of a `Part` for each image.
    """
    import numpy as np

    # Drawn for the whole batch: an image's part does not depend on the number of workers.
    random = np.random.default_rng((sampler.seed, CROP, step))
    parts: NDArray[np.float64] = random.random((sampler.workers, sampler.share, 4))[sampler.rank]
    parts[:, 0] = least + (1 - least) * parts[:, 0]
    parts[:, 1] = np.exp(np.interp(parts[:, 1], (0, 1), np.log(RATIO)))
    return parts


def crop(images: "Tensor", parts: "NDArray[np.float64]", size: int) -> "Tensor":
    """Cuts a part out of each image and scales it (bicubic, antialiased).

    Args:
        images: uint8 (N, H, W, C).
        parts: As `draw_parts` gives them, (N, 4).
        size: Height and width of the result.

    Returns:
        float32 (N, size, size, C), 0 to 255.
    """
    import torch

    height, width = images.shape[1:3]
    scaled = []
    for image, part in zip(images.permute(0, 3, 1, 2), parts.tolist(), strict=True):
        left, top, right, bottom = Part(*part).box(width, height)
        cut = image[None, :, top:bottom, left:right].float()
        scaled.append(
            torch.nn.functional.interpolate(cut, (size, size), mode="bicubic", antialias=True)
        )
    return torch.cat(scaled).clamp_(0, 255).permute(0, 2, 3, 1)
