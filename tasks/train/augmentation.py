"""Changes the training images at random; the seed and the step decide how.

Mirroring and shifting are plain indexing: kornia's shift of 64 images of 8 x 8 takes 0.9 ms, where
a whole step takes 5.8 ms. Kornia recolours and erases, a batch at a time on its device; it draws on
the CPU, so that the changes are the same on every device.
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retrain.workload import Augment
from tasks.train.data_loading import AUGMENT, BatchSampler, Part

# Labels, and the share of each image that they are for; the shares add up to 1.
Targets = tuple[tuple[Tensor, float], ...]

KEPT = 6  # images, for the report


class Augmentation:
    """Changes the images of each batch of a training."""

    def __init__(self, changes: Augment, sampler: BatchSampler, size: int) -> None:
        """Imports the libraries that the changes need.

        Args:
            changes: The changes to make.
            sampler: The sampler of the batches.
            size: Height and width of the images that the network takes.
        """
        self._changes, self._sampler, self._size = changes, sampler, size
        self._transforms = list(_transforms(changes))
        self._is_mixed = bool(changes.mixup or changes.cutmix)

    def __call__(
        self, images: Tensor, labels: Tensor, step: int, first: int = 0
    ) -> tuple[Tensor, Targets]:
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
        if self._changes.crop is not None:
            parts = self._sampler.parts(step, self._changes.crop)
            images = crop(images, parts[first : first + len(images)], self._size)
        images = augment(images, self._changes, self._sampler, step, first)
        targets: Targets = ((labels, 1.0),)
        place = (step, self._sampler.rank, *((first,) if first else ()))
        if self._transforms or self._is_mixed:
            seed = np.random.SeedSequence((self._sampler.seed, AUGMENT, *place))
            for_transforms, for_mixing = seed.generate_state(2, np.uint64).tolist()
        if self._transforms:
            images = self._transform(images, for_transforms >> 1)
        if self._is_mixed:
            images, targets = mix(images, labels, self._changes, np.random.default_rng(for_mixing))
        return images, targets

    def _transform(self, images: Tensor, seed: int) -> Tensor:
        """Makes kornia's changes, which the seed decides."""
        # The network draws its own numbers from the generator, which stays as it was.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(seed)
            pixels = images.permute(0, 3, 1, 2).float() / 255
            for transform in self._transforms:
                pixels = transform(pixels)
        return 255 * pixels.permute(0, 2, 3, 1)


def _transforms(changes: Augment) -> Iterator[torch.nn.Module]:
    """The changes that kornia makes, of float32 images (N, C, H, W), 0 to 1."""
    if not changes.by_kornia:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own use of torch
        from kornia import augmentation
        from kornia.augmentation.auto import RandAugment

    if jitter := changes.color_jitter:
        strengths = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
        yield augmentation.ColorJitter(*strengths, p=1.0)
    if magnitude := changes.rand_augment:
        yield RandAugment(2, magnitude)
    if changes.erasing:
        yield augmentation.RandomErasing(p=changes.erasing)


def crop(images: Tensor, parts: Sequence[Part], size: int) -> Tensor:
    """Cuts a part out of each image and scales it (bicubic, antialiased).

    Args:
        images: uint8 (N, H, W, C).
        parts: One for each image.
        size: Height and width of the result.

    Returns:
        float32 (N, size, size, C), 0 to 255.
    """
    height, width = images.shape[1:3]
    scaled = []
    for image, part in zip(images.permute(0, 3, 1, 2), parts, strict=True):
        left, top, right, bottom = part.box(width, height)
        cut = image[None, :, top:bottom, left:right].float()
        scaled.append(
            torch.nn.functional.interpolate(cut, (size, size), mode="bicubic", antialias=True)
        )
    return torch.cat(scaled).clamp_(0, 255).permute(0, 2, 3, 1)


def augment(
    images: Tensor, changes: Augment, sampler: BatchSampler, step: int, first: int = 0
) -> Tensor:
    """Mirrors and shifts images at random, on the device that they are on.

    Args:
        images: uint8 or float32 (N, H, W, C), of this worker's images of a batch.
        changes: The changes to make.
        sampler: The sampler of the batch.
        step: Optimizer steps before this one.
        first: The place of the first of them among the worker's images of the batch.

    Returns:
        (N, H, W, C), of the same type.
    """
    if not changes.flip and not changes.shift:
        return images
    # Drawn for the whole batch: an image's change does not depend on the number of workers.
    random = np.random.default_rng((sampler.seed, AUGMENT, step))
    batch_shape, rank = (sampler.workers, sampler.share), sampler.rank
    part = slice(first, first + len(images))
    shifts = random.integers(-changes.shift, changes.shift + 1, (2, *batch_shape))[:, rank, part]
    flips = random.integers(0, 1 + changes.flip, batch_shape)[rank, part]
    # A GPU gets a few numbers for each image, and makes those for each pixel.
    down, right, mirrored = (on_device(each, images.device) for each in (*shifts, flips))
    _, height, width, _ = images.shape
    y = (torch.arange(height, device=images.device) + down[:, None]).clamp(0, height - 1)
    x = (torch.arange(width, device=images.device) + right[:, None]).clamp(0, width - 1)
    x = torch.where(mirrored[:, None] > 0, width - 1 - x, x)
    pixels = y[:, :, None] * width + x[:, None, :]
    flat = images.flatten(1, 2)
    return flat.gather(1, pixels.flatten(1)[:, :, None].expand(flat.shape)).view(images.shape)


def on_device(numbers: NDArray[np.int64], device: torch.device) -> Tensor:
    """Brings a few numbers for each image to a device, without waiting for a GPU."""
    return torch.from_numpy(numbers).to(device, non_blocking=True)


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
    partners = on_device(random.permutation(len(images)), images.device)
    pixels = images.float()
    if kind == "mixup":
        pixels = torch.lerp(pixels[partners], pixels, share)
    else:
        pixels = pixels.clone()
        height, width = images.shape[1:3]
        rows, columns = _rectangle(height, width, 1 - share, random)
        pixels[:, rows, columns] = pixels[partners][:, rows, columns]
        replaced = (rows.stop - rows.start) * (columns.stop - columns.start)
        share = 1 - replaced / (height * width)
    return pixels, ((labels, share), (labels[partners], 1 - share))


def keep_images(file: Path, images: Tensor, targets: Targets, names: Sequence[str]) -> None:
    """Writes a few images as the network is given them, for the report.

    Args:
        file: Gets `images`, uint8 (n, H, W, C), and `labels`, str (n,), with the shares of mixed
            ones.
        images: uint8 or float32 (N, H, W, C), 0 to 255.
        targets: What they show.
        names: The class names by index.
    """
    parts = []
    for indices, share in targets:
        ending = f" ({share:.0%})" if share < 1 else ""
        parts.append([names[index] + ending for index in indices[:KEPT].tolist()])
    labels = [" and ".join(of) for of in zip(*parts, strict=True)]
    pixels = images[:KEPT].round().clamp(0, 255).to("cpu", torch.uint8).numpy()
    np.savez(file, images=pixels, labels=labels)


def _rectangle(
    height: int, width: int, area: float, random: np.random.Generator
) -> tuple[slice, slice]:
    """Rows and columns of a rectangle with a share of the image's area, cut off at its edge."""
    sides = []
    for side in (height, width):
        centre, half = int(random.integers(side)), side * area**0.5 / 2
        sides.append(slice(max(0, round(centre - half)), min(side, round(centre + half))))
    return sides[0], sides[1]
