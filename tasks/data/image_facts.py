"""Measures simple facts about images, such as brightness, in which drift is found.

A sample of images is kept with these facts and with the answers of a model. The facts are those of
the image as it comes in, before it is resized, and do not depend on the model.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from models.image import inspect

FACTS = ("side", "aspect", "brightness", "contrast")
SAMPLE = 1000  # images, about; a sample shows a shift of 0.1 between two distributions
WITH_FEATURES = 500  # of the sample; each has thousands of bytes of features
# A sample: the image, the label and the confidence of a model's answer, what the last layer of the
# model takes (null but for `WITH_FEATURES` images, and for a model that does not tell it), and the
# facts.
SCHEMA = pa.schema(
    {
        "sha256": pa.string(),
        "label": pa.string(),
        "confidence": pa.float32(),
        **dict.fromkeys(FACTS, pa.float64()),
        "features": pa.list_(pa.float32()),
    }
)


def is_sampled(digest: str, total: int, size: int = SAMPLE) -> bool:
    """Whether an image belongs to the sample of a number of images; a smaller one is a part of it.

    The last digits of the digest decide. Where images may have copies it is that of a path: else
    all copies would be in the sample, or none.
    """
    return int(digest[-8:], 16) * total < size << 32


def light(pixels: NDArray[np.uint8], format: str) -> dict[str, float]:
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
        and `contrast`, as `light` gives them.
    """
    try:
        properties, pixels = inspect(data)
    except ValueError:
        return None
    return of_size(properties.width, properties.height) | light(pixels, properties.format)


def of_size(width: int, height: int) -> dict[str, float]:
    """The facts about the size of an image: `side` and `aspect`."""
    return {"side": float((width * height) ** 0.5), "aspect": width / height}
