"""Recolours and erases training images with kornia, a batch at a time on its device.

The parameters of the changes are drawn on the CPU, so they are the same on every device.
"""

import warnings
from typing import TYPE_CHECKING

from retrain.workload import Augment

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


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

        self._transforms: list[Module] = []
        if jitter := changes.color_jitter:
            strengths = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
            self._transforms.append(augmentation.ColorJitter(*strengths, p=1.0))
        if chosen := changes.rand_augment:
            self._transforms.append(RandAugment(chosen.count, chosen.magnitude))
        if changes.erasing:
            self._transforms.append(augmentation.RandomErasing(p=changes.erasing))

    def __call__(self, images: "Tensor", seed: int) -> "Tensor":
        """Changes images.

        Args:
            images: uint8 or float32 (N, H, W, C), 0 to 255.
            seed: Decides the changes.

        Returns:
            float32 (N, H, W, C), 0 to 255.
        """
        import torch

        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            pixels = images.permute(0, 3, 1, 2).float() / 255
            with torch.no_grad():
                for transform in self._transforms:
                    pixels = transform(pixels)
        finally:
            generator.set_state(before)  # the network draws its own numbers from it
        return 255 * pixels.permute(0, 2, 3, 1)
