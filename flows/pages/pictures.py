"""The pictures of a gallery: thumbnails as data URLs, with lines of text below."""

from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image

SIDE = 96  # pixels of the longer side
SMALL = 32  # an image up to this side is enlarged, with sharp pixels
JPEG_QUALITY = 75
BROKEN = (  # a crossed square
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 96 96'%3E%3Cpath "
    "d='M20 20h56v56h-56zl56 56m0-56l-56 56' fill='none' stroke='%23888'/%3E%3C/svg%3E"
)

Thumbnail = dict[
    str, Any
]  # `source`, a data URL; `alt`, for a screen reader; whether it is `small`
Line = tuple[str, str]  # a text, and a class of `style.css`
Picture = tuple[list[Thumbnail], list[Line]]


def gallery(pictures: Iterable[Picture], count: int) -> dict[str, Any]:
    """Some pictures of a count of images."""
    return {"pictures": list(pictures), "count": count}


def of_array(pixels: "NDArray[np.uint8]", alt: str) -> Thumbnail:
    """A thumbnail of a prepared image.

    Args:
        pixels: uint8 (height, width, channels).
        alt: What a screen reader says.
    """
    from PIL import Image

    return _thumbnail(Image.fromarray(pixels.squeeze()), alt)


def of_encoded(data: bytes, alt: str) -> Thumbnail:
    """A thumbnail of an encoded image; a crossed square if it cannot be decoded."""
    from PIL import Image, ImageOps

    if data[4:8] == b"ftyp":  # AVIF, or HEIC, for which there is a package
        with suppress(ImportError):
            from pi_heif import register_heif_opener

            register_heif_opener()
    try:
        with Image.open(BytesIO(data)) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            return _thumbnail(ImageOps.exif_transpose(image), alt)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return {"source": BROKEN, "alt": f"{alt} (it cannot be decoded)", "small": False}


def _thumbnail(image: "Image", alt: str) -> Thumbnail:
    is_small = max(image.size) <= SMALL
    is_grey = image.mode in ("1", "L", "I", "F") or image.mode.startswith("I;")
    image = image.convert("L" if is_grey else "RGB")
    image.thumbnail((SIDE, SIDE))
    file, kind = BytesIO(), "png" if is_small else "jpeg"
    image.save(file, kind, quality=JPEG_QUALITY)
    source = f"data:image/{kind};base64,{b64encode(file.getvalue()).decode()}"
    return {"source": source, "alt": alt, "small": is_small}
