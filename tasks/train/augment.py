"""Augments the training images; the seed and the step decide the random changes.

Mirroring and shifting are plain indexing here: kornia's shift of 64 images of 8 x 8 takes 0.9 ms,
where a whole step takes 5.8 ms. The other changes are made by `cropping.py`, `transforms.py` and
`mixing.py`, which are imported by name: their code does not belong to a training without them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from retrain.workload import Augment
from tasks.train.sampler import AUGMENT, BatchSampler

if TYPE_CHECKING:
    from torch import Tensor

CROPPING = "tasks.train.cropping"
TRANSFORMS, MIXING = "tasks.train.transforms", "tasks.train.mixing"

# Labels, and the share of each image that they are for; the shares add up to 1.
Targets = tuple[tuple["Tensor", float], ...]


def modules_for(changes: Augment) -> tuple[str, ...]:
    """The modules that some changes need beside this one."""
    made_by = {
        CROPPING: changes.crop,
        TRANSFORMS: changes.color_jitter or changes.rand_augment or changes.erasing,
        MIXING: changes.mixup or changes.cutmix,
    }
    return tuple(module for module, change in made_by.items() if change)


class Augmentation:
    """The changes of a training."""

    def __init__(self, changes: Augment, sampler: BatchSampler, size: int) -> None:
        """Imports what they need.

        Args:
            changes: Which changes.
            sampler: The sampler of the batches.
            size: Height and width of the images that the network takes.
        """
        self._changes, self._sampler, self._size = changes, sampler, size
        modules = {name: import_module(name) for name in modules_for(changes)}
        self._transform: Any = TRANSFORMS in modules and modules[TRANSFORMS].Transforms(changes)
        self._cropping: Any = modules.get(CROPPING)
        self._mix: Any = MIXING in modules and modules[MIXING].mix

    def __call__(
        self, images: "Tensor", labels: "Tensor", step: int, first: int = 0
    ) -> "tuple[Tensor, Targets]":
        """Changes a worker's images of a batch, or some of them.

        How an image is cut, mirrored and shifted depends on its place in the batch alone. The other
        changes are drawn for the images of a call.

        Args:
            images: uint8 (N, H, W, C), larger than the network takes if they have a margin.
            labels: int64 (N,).
            step: Optimizer steps before this one.
            first: The place of the first of them among the worker's images of the batch.

        Returns:
            uint8 or float32 (N, size, size, C), 0 to 255, and what the images show.
        """
        import numpy as np

        if self._changes.crop is not None:
            parts = self._cropping.draw_parts(self._changes.crop, self._sampler, step)
            parts = parts[first : first + len(images)]
            images = self._cropping.crop(images, parts, self._size)
        images = augment(images, self._changes, self._sampler, step, first)
        targets: Targets = ((labels, 1.0),)
        if self._transform or self._mix:
            place = (step, self._sampler.rank, *((first,) if first else ()))
            seed = np.random.SeedSequence((self._sampler.seed, AUGMENT, *place))
            for_transforms, for_mixing = seed.generate_state(2, np.uint64).tolist()
        if self._transform:
            images = self._transform(images, for_transforms >> 1)
        if self._mix:
            random = np.random.default_rng(for_mixing)
            images, targets = self._mix(images, labels, self._changes, random)
        return images, targets


def augment(
    images: "Tensor", changes: Augment, sampler: BatchSampler, step: int, first: int = 0
) -> "Tensor":
    """Mirrors and shifts images at random, on the device that they are on.

    Args:
        images: uint8 or float32 (N, H, W, C), of this worker's images of a batch.
        changes: Which changes.
        sampler: The sampler of the batch.
        step: Optimizer steps before this one.
        first: The place of the first of them among the worker's images of the batch.

    Returns:
        (N, H, W, C), of the same type.
    """
    if not changes.flip and not changes.shift:
        return images
    import numpy as np
    import torch

    # Drawn for the whole batch: an image's change does not depend on the number of workers.
    random = np.random.default_rng((sampler.seed, AUGMENT, step))
    whole, rank = (sampler.workers, sampler.share), sampler.rank
    part = slice(first, first + len(images))
    shifts = random.integers(-changes.shift, changes.shift + 1, (2, *whole))[:, rank, part]
    flips = random.integers(0, 1 + changes.flip, whole)[rank, part]
    _, height, width, _ = images.shape
    y = (np.arange(height) + shifts[0][:, None]).clip(0, height - 1)
    x = (np.arange(width) + shifts[1][:, None]).clip(0, width - 1)
    x = np.where(flips[:, None], width - 1 - x, x)
    pixels = torch.from_numpy(y[:, :, None] * width + x[:, None, :]).to(images.device)
    flat = images.flatten(1, 2)
    return flat.gather(1, pixels.flatten(1)[:, :, None].expand(flat.shape)).view(images.shape)
