"""Decodes and resizes images, in the same way for training and for serving."""

import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError
from PIL.Image import Transpose

# Pillow reads forty more; most are rare, and EPS would start Ghostscript on the file.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
# How a HEIC file, as phones write it, says what it is; `mif1` may be an AVIF file, too. Pillow
# reads it with the package pi-heif, an extra of this project.
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")

# The most pixels that are decoded of an image: half a gigabyte. The decoder of a JPEG of four times
# `REDUCED` or more halves it, so that a photo of a phone, 108 or 200 million, takes what others do.
MAX_PIXELS, REDUCED = 180_000_000, 22_500_000
Image.MAX_IMAGE_PIXELS = 65_535**2  # of a JPEG: Pillow would count them before it is reduced
PngImagePlugin.MAX_TEXT_CHUNK = 2**26  # bytes; a colour profile or a text may be larger than one MB
NEW_SUBFILE_TYPE, DNG_VERSION = 254, 50706  # tags of TIFF
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # what such a file begins with

Box = tuple[int, int, int, int]

# What brings an image the right way up, by the orientation in its EXIF data.
UPRIGHT = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
ON_ITS_SIDE = (5, 6, 7, 8)

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
        is_animated: Whether it has more than one picture, of which the first one counts.
    """

    width: int
    height: int
    mode: str
    format: str
    camera: str | None
    taken: str | None
    is_animated: bool


def inspect(data: bytes, reduced: bool = False) -> tuple[ImageProperties, NDArray[np.uint8]]:
    """Decodes an image to check that it can be decoded.

    Args:
        data: The encoded image.
        reduced: Whether a JPEG is decoded at down to an eighth of its size, but not below 16 pixels
            in either direction. That reads every bit of it, so that damage is found, and saves a
            third of the time. Else only one of 90 million pixels or more is, to 22.5 million or
            more.

    Returns:
        Its properties; and its pixels, uint8 (H, W, C), the right way up, C being 1 or 3.

    Raises:
        ValueError: The image does not decode; the message says why.
    """
    decoded = _decode(data, least=16 if reduced else None)
    flat, opened = _flatten(decoded.image), decoded.opened
    pixels = np.asarray(flat).reshape(flat.height, flat.width, -1)
    camera, taken = _camera_and_time(opened)
    sides, kind = (decoded.width, decoded.height), str(opened.format)
    animated = _is_animated(opened)
    return ImageProperties(*sides, opened.mode, kind, camera, taken, animated), pixels


def _is_animated(image: Image.Image) -> bool:
    """Whether an image has a second picture, other than the preview that a camera adds."""
    try:
        return image.format != "MPO" and bool(getattr(image, "is_animated", False))
    except Exception:  # it is damaged
        return True


def _camera_and_time(image: Image.Image) -> tuple[str | None, str | None]:
    """The camera and the time in an image's EXIF data, as in `ImageProperties`."""
    exif = image.getexif()
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
    return cut_array(data, size, channels, partial(_box, resize), 1.0)


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
    decoded = _decode(data, least=2 * size / shorter_side)
    return _scale(decoded, size, channels, box(decoded.width, decoded.height))


@dataclass(frozen=True)
class _Decoded:
    """A decoded image.

    Attributes:
        opened: As Pillow has opened it.
        image: Its first picture, the right way up, in any of Pillow's modes.
        width: In pixels, the right way up, before it was reduced.
        height: In pixels, the right way up, before it was reduced.
        reduction: How many of these a pixel now stands for, in each direction.
    """

    opened: Image.Image
    image: Image.Image
    width: int
    height: int
    reduction: float


def _decode(data: bytes, least: float | None) -> _Decoded:
    """Decodes the first picture of an encoded image.

    Args:
        data: The encoded image.
        least: The smallest shorter side that a JPEG's decoder may reduce it to, in pixels; None for
            no reduction but of very large ones. Other formats are never reduced.

    Raises:
        ValueError: The image does not decode.
    """
    try:
        is_heic = data[4:8] == b"ftyp" and data[8:12] in HEIC_BRANDS
        formats = (*FORMATS, "HEIF") if is_heic and reads_heic() else FORMATS
        image: Image.Image = Image.open(io.BytesIO(data), formats=formats)
        _refuse_raw(image, data)
        width, height = image.size
        if least is None:
            least = math.sqrt(REDUCED * min(image.size) / max(image.size))
        draft = image.draft(None, (math.ceil(least), math.ceil(least)))
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{width} x {height} pixels are more than {MAX_PIXELS:,}")
        # Of colours of 16 bits, Pillow keeps the upper 8.
        is_narrowed = ";16" in str(getattr(image, "tile", "")) and image.mode[0] != "I"
        image.load()
        if is_narrowed:
            _check_range(np.asarray(image.convert("RGB")).max(), 255)
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except UnidentifiedImageError:
        if is_heic and not reads_heic():
            raise ValueError("HEIC, which needs a package: pip install pi-heif") from None
        if data.startswith(LFS_POINTER):
            raise ValueError("a Git LFS pointer in place of an image: git lfs pull") from None
        raise ValueError(f"not an image ({', '.join(FORMATS)})" if data else "empty") from None
    except Exception as error:  # a decoder may raise anything for a broken file
        raise ValueError(str(error) or type(error).__name__) from error
    # `ImageOps.exif_transpose` would write the EXIF data anew, and some cannot be written.
    upright = image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image
    sides = (height, width) if orientation in ON_ITS_SIDE else (width, height)
    return _Decoded(image, upright, *sides, width / draft[1][2] if draft else 1)


def _refuse_raw(image: Image.Image, data: bytes) -> None:
    """Refuses a camera's raw file, whose first picture is a thumbnail of what it holds.

    Raises:
        ValueError: It is a CR2, a DNG, or another TIFF whose first picture is said to be reduced.
    """
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        is_reduced = image.tag_v2.get(NEW_SUBFILE_TYPE, 0) & 1
        if data[8:10] == b"CR" or DNG_VERSION in image.tag_v2 or is_reduced:
            raise ValueError("a camera's raw file: export it as JPEG")


@cache
def reads_heic() -> bool:
    """Whether Pillow reads HEIC, in this process from now on."""
    try:
        from pi_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _scale(decoded: _Decoded, size: int, channels: int, box: Box) -> NDArray[np.uint8]:
    """Brings a part of a decoded image to the size wanted.

    Args:
        decoded: The image.
        size: Height and width of the result.
        channels: The channels of the result, 1 or 3.
        box: The part's left, top, right and bottom before the image was reduced.
    """
    image = _convert(_flatten(decoded.image), "L" if channels == 1 else "RGB")
    if not (image.size == (size, size) and box == (0, 0, size, size)):
        left, top, right, bottom = (side / decoded.reduction for side in box)
        image = image.resize(
            (size, size), Image.Resampling[RESAMPLING.upper()], box=(left, top, right, bottom)
        )
    return np.asarray(image).reshape(size, size, channels)


def _box(resize: str, width: int, height: int) -> Box:
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


def _check_range(greatest: float, white: float) -> None:
    """Refuses what a camera of 12 bits wrote, which would be all but black.

    Which value is white cannot be told from one image, and scaling each by its own largest value
    would make dark images bright.

    Raises:
        ValueError: At most 16 of 256 shades are left.
    """
    if 0 < greatest < white / 16:
        raise ValueError(
            "its values end below a sixteenth of white: at most 16 of 256 shades are left. A "
            "camera of 12 bits writes such files: multiply all by 16"
        )


def _narrow(image: Image.Image) -> Image.Image:
    """A grey image of whole numbers up to 65,535, or of floats up to 1, as `L`.

    Pillow's own conversion cuts everything above 255 off.
    """
    white = 1 if image.mode == "F" else 65_535
    grey = np.asarray(image).astype(np.float64)
    if not (grey.min() >= 0 and grey.max() <= white):
        raise ValueError(f"values from {grey.min():g} to {grey.max():g}, not from 0 to {white:,}")
    _check_range(grey.max(), white)
    if "transparency" in image.info:
        grey[grey == image.info["transparency"]] = white
    return Image.fromarray((grey * (255 / white) + 0.5).astype(np.uint8))
