"""Recolours and erases training images with kornia, a batch at a time on its device.

The parameters of the changes are drawn on the CPU, so they are the same on every device.
"""

import warnings

import torch
from torch import Tensor

from retrain.workload import Augment


class Transforms:
    """The changes of a workload that kornia makes."""

    def __init__(self, changes: Augment) -> None:
        """Prepares them.

        Args:
            changes: Which changes; those that kornia does not make are left out.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own use of torch
            from kornia import augmentation
            from kornia.augmentation.auto import RandAugment

        self._transforms: list[torch.nn.Module] = []
        if jitter := changes.color_jitter:
            strengths = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
            self._transforms.append(augmentation.ColorJitter(*strengths, p=1.0))
        if policy := changes.rand_augment:
            self._transforms.append(RandAugment(policy.count, policy.magnitude))
        if changes.erasing:
            self._transforms.append(augmentation.RandomErasing(p=changes.erasing))

    def __call__(self, images: Tensor, seed: int) -> Tensor:
        """Changes images.

        Args:
            images: uint8 or float32 (N, H, W, C), 0 to 255.
            seed: Decides the changes.

        Returns:
            float32 (N, H, W, C), 0 to 255.
        """
        # The network draws its own numbers from the generator, which stays as it was.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(seed)
            pixels = images.permute(0, 3, 1, 2).float() / 255
            for transform in self._transforms:
                pixels = transform(pixels)
        return 255 * pixels.permute(0, 2, 3, 1)
