"""Decodes and resizes images, in the same way for training and for serving."""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

# Pillow reads forty more; most are rare, and EPS would start Ghostscript on the file.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
# How a HEIC file, as phones write it, says what it is; `mif1` may be an AVIF file, too. Pillow
# reads it with the package pi-heif, an extra of this project.
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")

Box = tuple[int, int, int, int]

RESAMPLING = "bicubic"  # with antialiasing

_TIME = re.compile(r"[1-9]\d{3}:\d\d:\d\d \d\d:\d\d:\d\d")  # a camera without a clock writes zeros


@dataclass(frozen=True)
class ImageProperties:
    """The properties of an image before any change.

    Each is a column of the table of accepted images.

    Attributes:
        width: In pixels, the right way up.
        height: In pixels, the right way up.
        mode: Pillow's name of its pixel format: `L`, `RGB`, `P`, `I;16` …
        format: Pillow's name of its encoding: `JPEG`, `PNG` …
        camera: The make and the model in its EXIF data; None without them.
        taken: When it was taken, by its EXIF data: `2026:11:23 14:55:02`; None if that is unknown.
    """

    width: int
    height: int
    mode: str
    format: str
    camera: str | None
    taken: str | None


def inspect(data: bytes, reduced: bool = False) -> tuple[ImageProperties, NDArray[np.uint8]]:
    """Decodes an image to check that it can be decoded.

    Args:
        data: The encoded image.
        reduced: Whether a JPEG is decoded at down to an eighth of its size, but not below 16 pixels
            in either direction. That reads every bit of it, so that damage is found, and saves a
            third of the time.

    Returns:
        Its properties; and its pixels, uint8 (H, W, C), the right way up, C being 1 or 3.

    Raises:
        ValueError: The image does not decode; the message says why.
    """
    image, (width, height), _ = _decode(data, least=16 if reduced else None)
    flat = _flatten(image)
    pixels = np.asarray(flat).reshape(flat.height, flat.width, -1)
    camera, taken = _camera_and_time(image.getexif())
    properties = ImageProperties(width, height, image.mode, str(image.format), camera, taken)
    return properties, pixels


def _camera_and_time(exif: Image.Exif) -> tuple[str | None, str | None]:
    """The camera and the time in EXIF data, as in `ImageProperties`."""
    if not exif:
        return None, None
    makers = (exif.get(tag) for tag in (ExifTags.Base.Make, ExifTags.Base.Model))
    camera = " ".join(str(maker).strip("\0 ") for maker in makers if maker).strip()
    original = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal)
    times = (_TIME.match(str(tag)) for tag in (original, exif.get(ExifTags.Base.DateTime)))
    return camera or None, next((time[0] for time in times if time), None)


def to_array(data: bytes, size: int, channels: int, resize: str) -> NDArray[np.uint8]:
    """Decodes an image and brings it to the size that the model takes.

    The EXIF orientation is applied; colour profiles are not. Transparent parts become white.
    An image that has the size already keeps its pixels; all others are resampled (bicubic,
    antialiased).

    A JPEG whose shorter side is 4 or more times the size is first reduced to a half, a quarter or
    an eighth by its decoder, as far as it stays at least twice as large as wanted. On photos that
    changes the result by 0.2 to 1.2 of 255 on average and by 14 at most; down to the size wanted
    it would be 3.3 and 46.

    Args:
        data: The encoded image.
        size: Height and width in pixels.
        channels: 1 is grey (ITU-R 601-2 luma of the colours), 3 is RGB.
        resize: `crop` cuts the middle square out and scales it, `stretch` scales the whole image.

    Returns:
        uint8 (size, size, channels).

    Raises:
        ValueError: The image does not decode; the message says why.
    """
    image, sides, reduction = _decode(data, least=2 * size)
    return _scale(image, reduction, size, channels, _box(*sides, resize))


def cut_array(
    data: bytes, size: int, channels: int, box: Callable[[int, int], Box], shorter_side: float
) -> NDArray[np.uint8]:
    """Decodes an image, cuts a part out of it, and brings that to the size that the model takes.

    It is done as `to_array` does it, with the part in place of the whole.

    Args:
        data: The encoded image.
        size: Height and width in pixels.
        channels: 1 or 3.
        box: The part's left, top, right and bottom in pixels, of the image's width and height.
        shorter_side: Of the part, as a share of the image's shorter side, or less.

    Returns:
        uint8 (size, size, channels).

    Raises:
        ValueError: The image does not decode; the message says why.
    """
    image, sides, reduction = _decode(data, least=2 * size / shorter_side)
    return _scale(image, reduction, size, channels, box(*sides))


def to_arrays(encoded: Sequence[bytes], size: int, channels: int, resize: str) -> NDArray[np.uint8]:
    """Does the same as `to_array` with several images.

    Args:
        encoded: The encoded images.
        size: Height and width in pixels.
        channels: 1 or 3.
        resize: `crop` or `stretch`.

    Returns:
        uint8 (N, size, size, channels).

    Raises:
        ValueError: One does not decode; the message says why.
    """
    return np.stack([to_array(data, size, channels, resize) for data in encoded])


def _decode(data: bytes, least: float | None) -> tuple[Image.Image, tuple[int, int], float]:
    """Decodes the first picture of an encoded image.

    Args:
        data: The encoded image.
        least: The smallest shorter side that a JPEG's decoder may reduce it to, in pixels; None for
            no reduction. Other formats are never reduced.

    Returns:
        The image, the right way up, in any of Pillow's modes; its width and height in pixels before
        it was reduced; and how many of these a pixel now stands for, in each direction.

    Raises:
        ValueError: The image does not decode.
    """
    limit = Image.MAX_IMAGE_PIXELS or float("inf")
    try:
        is_heic = data[4:8] == b"ftyp" and data[8:12] in HEIC_BRANDS
        formats = (*FORMATS, "HEIF") if is_heic and reads_heic() else FORMATS
        image: Image.Image = Image.open(io.BytesIO(data), formats=formats)
        width, height = image.size
        if width * height > limit:  # up to twice as many, Pillow only warns
            raise ValueError(f"{width} x {height} pixels are too many")
        draft = image.draft(None, (math.ceil(least), math.ceil(least))) if least else None
        reduction = width / draft[1][2] if draft else 1
        is_narrowed = ";16" in str(getattr(image, "tile", "")) and image.mode[0] != "I"
        image.load()
        if is_narrowed:
            _check_narrowed(image)
        if image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8):  # it lies on its side
            width, height = height, width
        ImageOps.exif_transpose(image, in_place=True)
    except UnidentifiedImageError:
        if is_heic and not reads_heic():
            raise ValueError("HEIC, which needs a package: pip install pi-heif") from None
        raise ValueError(f"not an image ({', '.join(FORMATS)})" if data else "empty") from None
    except Exception as error:  # a decoder may raise anything for a broken file
        raise ValueError(str(error) or type(error).__name__) from error
    return image, (width, height), reduction


@cache
def reads_heic() -> bool:
    """Whether Pillow reads HEIC, in this process from now on."""
    try:
        from pi_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _scale(
    image: Image.Image,
    reduction: float,
    size: int,
    channels: int,
    box: tuple[int, int, int, int],
) -> NDArray[np.uint8]:
    """Brings a part of a decoded image to the size wanted.

    Args:
        image: The decoded image, as `_decode` returns it.
        reduction: How many original pixels one of its pixels stands for, in each direction.
        size: Height and width of the result.
        channels: The channels of the result, 1 or 3.
        box: The part's left, top, right and bottom before the image was reduced.
    """
    image = _convert(_flatten(image), "L" if channels == 1 else "RGB")
    if not (image.size == (size, size) and box == (0, 0, size, size)):
        left, top, right, bottom = (side / reduction for side in box)
        image = image.resize(
            (size, size), Image.Resampling[RESAMPLING.upper()], box=(left, top, right, bottom)
        )
    return np.asarray(image).reshape(size, size, channels)


def _box(width: int, height: int, resize: str) -> tuple[int, int, int, int]:
    """The part of an image that is scaled: left, top, right, bottom."""
    if resize == "stretch":
        return 0, 0, width, height
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _flatten(image: Image.Image) -> Image.Image:
    """An image in any of Pillow's modes as `L` or `RGB`.

    Transparency is laid on white: most such pictures were made for a white page, and Pillow's own
    conversion would show the hidden colour, often black.

    Raises:
        ValueError: The numbers are beyond the range that its mode is used for.
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _narrow(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return _convert(image, "L" if image.mode in ("1", "L") else "RGB")


def _convert(image: Image.Image, mode: str) -> Image.Image:
    """The image itself if it has the mode: Pillow would copy it."""
    return image if image.mode == mode else image.convert(mode)


def _check_narrowed(image: Image.Image) -> None:
    """Refuses colours of 16 bits, of which Pillow keeps the upper 8, where `_narrow` refuses grey.

    Raises:
        ValueError: At most 16 of 256 shades are left.
    """
    if 0 < np.asarray(image.convert("RGB")).max() < 16:
        raise ValueError(
            "its values end below 4,096, and white is 65,535: at most 16 of 256 shades are left. A "
            "camera of 12 bits writes such files: multiply all by 65,535 / 4,095"
        )


def _narrow(image: Image.Image) -> Image.Image:
    """A grey image of whole numbers up to 65,535, or of floats up to 1, as `L`.

    Pillow's own conversion cuts everything above 255 off. What a camera of 12 bits wrote would be
    all but black, and is refused: which value is white cannot be told from one image, and scaling
    each by its own largest value would make dark images bright.
    """
    white = 1 if image.mode == "F" else 65_535
    grey = np.asarray(image).astype(np.float64)
    if not (grey.min() >= 0 and grey.max() <= white):
        raise ValueError(f"values from {grey.min():g} to {grey.max():g}, not from 0 to {white:,}")
    if 0 < 16 * grey.max() < white:
        raise ValueError(
            f"its values end at {grey.max():g}, and white is {white:,}: at most 16 of 256 greys "
            f"are left. A camera of 12 bits writes such files: multiply all by {white:,} / 4,095"
        )
    if "transparency" in image.info:
        grey[grey == image.info["transparency"]] = white
    return Image.fromarray((grey * (255 / white) + 0.5).astype(np.uint8))
