"""Thumbnails of images as data URLs, for pages that people look at."""

from base64 import b64encode
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.image import inspect

SIDE = 96  # pixels of the longer side
SMALL = 32  # an image up to this side is enlarged, with sharp pixels
JPEG_QUALITY = 75
BROKEN = (  # a crossed square
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 96 96'%3E%3Cpath "
    "d='M20 20h56v56h-56zl56 56m0-56l-56 56' fill='none' stroke='%23888'/%3E%3C/svg%3E"
)

# `source`, a data URL; `alt`, for a screen reader; whether it is `small`.
Thumbnail = dict[str, Any]


def of_array(pixels: NDArray[np.uint8], alt: str) -> Thumbnail:
    """A thumbnail of decoded pixels.

    Args:
        pixels: uint8 (height, width, channels), with 1 or 3 channels.
        alt: What a screen reader says.
    """
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    is_small = max(image.size) <= SMALL
    image.thumbnail((SIDE, SIDE))
    file, kind = BytesIO(), "png" if is_small else "jpeg"
    image.save(file, kind, quality=JPEG_QUALITY)
    source = f"data:image/{kind};base64,{b64encode(file.getvalue()).decode()}"
    return {"source": source, "alt": alt, "small": is_small}


def of_encoded(data: bytes, alt: str) -> Thumbnail:
    """A thumbnail of an encoded image; a crossed square if it cannot be decoded."""
    try:
        return of_array(inspect(data)[1], alt)
    except ValueError:
        return {"source": BROKEN, "alt": f"{alt} (it cannot be decoded)", "small": False}
