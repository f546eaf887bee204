"""Calculates the identity of an image, and simple facts such as its brightness.

The identity is a digest of the pixels and not of the file. An image that was saved again without
loss, as PNG, BMP or in a Parquet file, keeps it. One that was saved again as JPEG does not; the
fingerprints of `tasks/data/perceptual_hash.py` find such copies. Drift is found in the facts, which
are those of the image as it comes in, before it is resized, and do not depend on the model.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.image import inspect

FACTS = ("side", "aspect", "brightness", "contrast")


def digest(pixels: NDArray[np.uint8]) -> str:
    """SHA-256 (hex) over an image's height, width, channels and pixels.

    Colours that are all grey count as one channel, because formats store a grey image in both ways.

    Args:
        pixels: uint8 (H, W, C), the right way up, C being 1 or 3; see `models.image.inspect`.
    """
    if pixels.shape[2] == 3 and _is_grey(pixels[:1]) and _is_grey(pixels):
        pixels = pixels[..., :1]
    height, width, channels = pixels.shape
    sha256 = hashlib.sha256(f"{height} {width} {channels} ".encode())
    sha256.update(np.ascontiguousarray(pixels).data)
    return sha256.hexdigest()


def image_id(pixels: str) -> int:
    """A number for an image: the first 8 bytes of what `digest` gives."""
    return int(pixels[:16], 16)


def _is_grey(pixels: NDArray[np.uint8]) -> bool:
    return bool((pixels == pixels[..., :1]).all())


def luminance(pixels: NDArray[np.uint8], format: str) -> dict[str, float]:
    """The brightness and the contrast of an image.

    Those of a JPEG are measured at down to an eighth of its size, as its decoder reduces it.

    Args:
        pixels: uint8 (H, W, C), C being 1 or 3.
        format: Pillow's name of its encoding.

    Returns:
        `brightness` and `contrast`: the mean and the standard deviation of the pixels, from 0 to 1.
    """
    shorter = min(pixels.shape[:2])
    factor = next(by for by in (8, 4, 2, 1) if by == 1 or shorter >= 16 * by)
    if format == "JPEG" and factor > 1:
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        pixels = np.atleast_3d(np.asarray(image.reduce(factor)))
    grey = pixels.mean(axis=2)
    return {"brightness": float(grey.mean() / 255), "contrast": float(grey.std() / 255)}


def measure(data: bytes) -> dict[str, float] | None:
    """The facts about an encoded image; None if it does not decode.

    Returns:
        `side`, the square root of the number of pixels; `aspect`, width to height; `brightness`
        and `contrast`, as `luminance` gives them.
    """
    try:
        properties, pixels = inspect(data)
    except ValueError:
        return None
    return size_facts(properties.width, properties.height) | luminance(pixels, properties.format)


def size_facts(width: int, height: int) -> dict[str, float]:
    """The facts about the size of an image: `side` and `aspect`."""
    return {"side": float((width * height) ** 0.5), "aspect": width / height}
