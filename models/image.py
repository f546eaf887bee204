"""The one place where an encoded image becomes pixels, for training and for serving alike."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

# Pillow knows forty more; some are rarely meant, and EPS would start Ghostscript on the file.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")


@dataclass(frozen=True)
class Inspection:
    """What an image is before anything is done to it.

    Attributes:
        width: In pixels, the right way up.
        height: In pixels, the right way up.
        mode: Pillow's name of its pixel format: `L`, `RGB`, `P`, `I;16` …
    """

    width: int
    height: int
    mode: str


def inspect(data: bytes) -> Inspection:
    """Decodes an image as `to_array` does, only to see that it can be and what it is.

    Args:
        data: The encoded image.

    Raises:
        ValueError: It does not decode; the message says why.
    """
    image = _decode(data)
    _flatten(image)
    return Inspection(image.width, image.height, image.mode)


def to_array(data: bytes, size: int, channels: int, resize: str) -> "NDArray[np.uint8]":
    """Decodes an image and brings it to the size that the model takes.

    The EXIF orientation is applied; colour profiles are not. What is transparent becomes white.
    An image that has the size already keeps its pixels; all others are resampled (bicubic,
    antialiased).

    Args:
        data: The encoded image.
        size: Height and width in pixels.
        channels: 1 is grey (ITU-R 601-2 luma of the colours), 3 is RGB.
        resize: `crop` cuts the middle square out and scales it, `stretch` scales the whole image.

    Returns:
        uint8 (size, size, channels).

    Raises:
        ValueError: It does not decode; the message says why.
    """
    import numpy as np
    from PIL import Image

    image = _flatten(_decode(data)).convert("L" if channels == 1 else "RGB")
    if image.size != (size, size):
        left = top = 0
        width, height = image.size
        if resize == "crop":
            side = min(width, height)
            left, top = (width - side) // 2, (height - side) // 2
            width = height = side
        box = (left, top, left + width, top + height)
        image = image.resize((size, size), Image.Resampling.BICUBIC, box=box)
    return np.asarray(image).reshape(size, size, channels)


def _decode(data: bytes) -> "Image.Image":
    """The first picture of an encoded image, the right way up, in the mode that it has.

    Raises:
        ValueError: It does not decode.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    limit = Image.MAX_IMAGE_PIXELS or float("inf")
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > limit:  # up to twice as many, Pillow only warns
            raise ValueError(f"{image.width} x {image.height} pixels are too many")
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise ValueError(f"not an image ({known})" if data else "empty") from None
    except Exception as error:  # a decoder raises whatever a broken file makes it stumble over
        raise ValueError(str(error) or type(error).__name__) from error
    return image


def _flatten(image: "Image.Image") -> "Image.Image":
    """An image in any of Pillow's modes as `L` or `RGB`.

    Transparency is laid on white: most pictures that have it were cut out to be shown on a white
    page, and Pillow's own conversion would bring out whatever colour lies under it, often black.

    Raises:
        ValueError: Its numbers are beyond the range that its mode is used for.
    """
    from PIL import Image

    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _narrow(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _narrow(image: "Image.Image") -> "Image.Image":
    """A grey image of whole numbers up to 65,535, or of floats up to 1, as `L`.

    Pillow's own conversion cuts everything above 255 off.
    """
    import numpy as np
    from PIL import Image

    white = 1 if image.mode == "F" else 65_535
    grey = np.asarray(image).astype(np.float64)
    if not (grey.min() >= 0 and grey.max() <= white):
        raise ValueError(f"values from {grey.min():g} to {grey.max():g}, not from 0 to {white:,}")
    if "transparency" in image.info:
        grey[grey == image.info["transparency"]] = white
    return Image.fromarray((grey * (255 / white) + 0.5).astype(np.uint8))
