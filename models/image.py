"""Decodes and resizes images, in the same way for training and for serving."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

# Pillow reads forty more; most are rare, and EPS would start Ghostscript on the file.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")

RESAMPLING = "bicubic"  # with antialiasing

# What turns an image the right way up, by its EXIF orientation: numbers of `Image.Transpose`. With
# 5 and more, width and height are exchanged.
_ORIENTATION = 0x0112
_UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


@dataclass(frozen=True)
class ImageProperties:
    """The properties of an image before any change.

    Each is a column of the image table and of the database that is checked.

    Attributes:
        width: In pixels, the right way up.
        height: In pixels, the right way up.
        mode: Pillow's name of its pixel format: `L`, `RGB`, `P`, `I;16` …
    """

    width: int
    height: int
    mode: str


@dataclass(frozen=True)
class Part:
    """A part of an image, of any size of it.

    Attributes:
        area: Its share of the area.
        ratio: Width to height, both in pixels. A part that would not fit is made smaller.
        x: Where it is in its free space, from 0 (left) to before 1 (right).
        y: The same, from 0 (top).
    """

    area: float
    ratio: float
    x: float
    y: float

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Its left, top, right and bottom in an image of a size, in pixels."""
        across = min((self.area * width * height * self.ratio) ** 0.5, width, self.ratio * height)
        w, h = max(1, round(across)), max(1, round(across / self.ratio))
        left, top = int(self.x * (width - w + 1)), int(self.y * (height - h + 1))
        return left, top, left + w, top + h


@dataclass(frozen=True)
class _Decoded:
    """A decoded image, as it is stored.

    Attributes:
        stored: In any of Pillow's modes; of a JPEG the pixels (H, W, C), perhaps of reduced size.
        width: In pixels, before it was reduced.
        height: In pixels, before it was reduced.
        reduction: How many of its pixels a pixel of `stored` stands for, in each direction.
        orientation: As EXIF numbers it; 1 is the right way up.
    """

    stored: "Image.Image | NDArray[np.uint8]"
    width: int
    height: int
    reduction: int = 1
    orientation: int = 1

    @property
    def image(self) -> "Image.Image":
        """What is stored, as Pillow has it."""
        from PIL import Image

        return self.stored if isinstance(self.stored, Image.Image) else _image_of(self.stored)


def inspect(data: bytes, reduced: bool = False) -> "tuple[ImageProperties, NDArray[np.uint8]]":
    """Decodes an image to check that it can be decoded.

    Args:
        data: The encoded image.
        reduced: Whether a JPEG is decoded at down to an eighth of its size, but not below 16 pixels
            in either direction. That reads every bit of it, so that damage is found, and saves a
            third of the time.

    Returns:
        Its properties; and its pixels, uint8 (H, W, C), the right way up, C being 1 or 3.

    Raises:
        ValueError: It does not decode; the message says why.
    """
    import numpy as np

    found = _decode(data, least=16 if reduced else None)
    width, height = found.width, found.height
    if isinstance(found.stored, np.ndarray) and found.orientation == 1:
        pixels = found.stored
        return ImageProperties(width, height, "L" if pixels.shape[2] == 1 else "RGB"), pixels
    if found.orientation >= 5:
        width, height = height, width
    flat = _upright(_flatten(found.image), found.orientation)
    pixels = np.asarray(flat).reshape(flat.height, flat.width, -1)
    return ImageProperties(width, height, found.image.mode), pixels


def to_array(data: bytes, size: int, channels: int, resize: str) -> "NDArray[np.uint8]":
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
        ValueError: It does not decode; the message says why.
    """
    found = _decode(data, least=2 * size)
    return _scale(found, size, channels, _box(found.width, found.height, resize))


def cut_array(data: bytes, size: int, channels: int, part: Part) -> "NDArray[np.uint8]":
    """Decodes an image, cuts a part out of it, and brings that to the size that the model takes.

    It is done as `to_array` does it, with the part in place of the whole.

    Args:
        data: The encoded image.
        size: Height and width in pixels.
        channels: 1 or 3.
        part: Of the image as it is stored, before it is turned the right way up.

    Returns:
        uint8 (size, size, channels).

    Raises:
        ValueError: It does not decode; the message says why.
    """
    shorter = (part.area * min(part.ratio, 1 / part.ratio)) ** 0.5  # side, of the image's, or more
    found = _decode(data, least=2 * size / shorter)
    return _scale(found, size, channels, part.box(found.width, found.height))


def to_arrays(
    encoded: Sequence[bytes], size: int, channels: int, resize: str
) -> "NDArray[np.uint8]":
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
    import numpy as np

    arrays = np.empty((len(encoded), size, size, channels), np.uint8)
    for number, data in enumerate(encoded):
        arrays[number] = to_array(data, size, channels, resize)
    return arrays


def to_jpeg(pixels: "NDArray[np.uint8]") -> bytes:
    """Encodes an image for storage, with little loss; `to_array` reads it.

    Args:
        pixels: uint8 (H, W, C), C being 1 or 3.
    """
    import simplejpeg

    grey = pixels.shape[2] == 1
    encoded: bytes = simplejpeg.encode_jpeg(
        pixels,
        quality=95,
        colorspace="GRAY" if grey else "RGB",
        colorsubsampling="Gray" if grey else "444",
    )
    return encoded


def _decode(data: bytes, least: float | None) -> _Decoded:
    """Decodes the first picture of an encoded image.

    Plain JPEGs are left to libjpeg-turbo without Pillow around it, which gives the same pixels in
    less time. Where it finds the slightest fault, Pillow decides.

    Args:
        data: The encoded image.
        least: The smallest shorter side allowed after a reduction, in pixels; None for no
            reduction.

    Raises:
        ValueError: It does not decode.
    """
    if data.startswith(b"\xff\xd8\xff"):
        try:
            return _decode_jpeg(data, least)
        except Exception:  # of the decoder, or of Pillow where it reads a broken orientation
            pass
    image = _decode_any(data)
    return _Decoded(image, image.width, image.height)


def _decode_jpeg(data: bytes, least: float | None) -> _Decoded:
    """Decodes a JPEG, reduced as far as `least` allows.

    Raises:
        ValueError: It is damaged, too large, or of a rare kind.
    """
    import simplejpeg
    from PIL import Image

    height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    if colours not in ("Gray", "YCbCr", "RGB"):
        raise ValueError(colours)
    if width * height > (Image.MAX_IMAGE_PIXELS or float("inf")):
        raise ValueError(f"{width} x {height}")
    orientation = 1
    if b"\xff\xe1" in data:  # a segment of the kind that holds EXIF and XMP
        stored = Image.open(io.BytesIO(data), formats=("JPEG",))
        orientation = stored.getexif().get(_ORIENTATION, 1)
        orientation = orientation if orientation in _UPRIGHT else 1
    # The steps between, such as 3/8, are slower than the next larger one of these.
    reduction = 1
    if least is not None:
        reduction = next((by for by in (8, 4, 2) if min(width, height) >= by * least), 1)
    pixels = simplejpeg.decode_jpeg(
        data,
        "GRAY" if colours == "Gray" else "RGB",
        min_height=-(-height // reduction),
        min_width=-(-width // reduction),
        min_factor=reduction,
    )
    return _Decoded(pixels, width, height, reduction, orientation)


def _decode_any(data: bytes) -> "Image.Image":
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
    except Exception as error:  # a decoder may raise anything for a broken file
        raise ValueError(str(error) or type(error).__name__) from error
    return image


def _scale(
    found: _Decoded, size: int, channels: int, box: tuple[int, int, int, int]
) -> "NDArray[np.uint8]":
    """Brings a part of a decoded image to the size wanted, the right way up.

    Args:
        found: The image.
        size: Height and width wanted.
        channels: 1 or 3, as wanted.
        box: The part's left, top, right and bottom before the image was reduced.
    """
    import numpy as np
    from PIL import Image

    stored, is_as_wanted = found.stored, box == (0, 0, size, size)
    if (
        isinstance(stored, np.ndarray)
        and stored.shape == (size, size, channels)
        and found.orientation == 1
        and is_as_wanted
    ):
        return stored  # to make a Pillow image of it and back takes as long as decoding it
    image = _convert(_flatten(found.image), "L" if channels == 1 else "RGB")
    if not (image.size == (size, size) and is_as_wanted):
        by = found.reduction
        left, top, right, bottom = box
        image = image.resize(
            (size, size),
            Image.Resampling[RESAMPLING.upper()],
            box=(left / by, top / by, right / by, bottom / by),
        )
    image = _upright(image, found.orientation)
    return np.asarray(image).reshape(size, size, channels)


def _upright(image: "Image.Image", orientation: int) -> "Image.Image":
    """An image turned the right way up; see `_Decoded`."""
    from PIL import Image

    if orientation == 1:
        return image
    return image.transpose(Image.Transpose(_UPRIGHT[orientation]))


def _box(width: int, height: int, resize: str) -> tuple[int, int, int, int]:
    """The part of an image that is scaled: left, top, right, bottom."""
    if resize == "stretch":
        return 0, 0, width, height
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _image_of(pixels: "NDArray[np.uint8]") -> "Image.Image":
    """Pixels (H, W, C), C being 1 or 3, as Pillow has them."""
    from PIL import Image

    mode = "L" if pixels.shape[2] == 1 else "RGB"
    # `fromarray` would take longer to find out what it is given than to copy a small image.
    return Image.frombuffer(mode, pixels.shape[1::-1], pixels, "raw", mode, 0, 1)


def _flatten(image: "Image.Image") -> "Image.Image":
    """An image in any of Pillow's modes as `L` or `RGB`.

    Transparency is laid on white: most such pictures were made for a white page, and Pillow's own
    conversion would show the hidden colour, often black.

    Raises:
        ValueError: Its numbers are beyond the range that its mode is used for.
    """
    from PIL import Image

    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _narrow(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return _convert(image, "L" if image.mode in ("1", "L") else "RGB")


def _convert(image: "Image.Image", mode: str) -> "Image.Image":
    """The image itself if it has the mode: Pillow would copy it."""
    return image if image.mode == mode else image.convert(mode)


def _narrow(image: "Image.Image") -> "Image.Image":
    """A grey image of whole numbers up to 65,535, or of floats up to 1, as `L`.

    Pillow's own conversion cuts everything above 255 off. What a camera of 12 bits wrote would be
    all but black, and is refused: which value is white cannot be told from one image, and scaling
    each by its own largest value would make dark images bright.
    """
    import numpy as np
    from PIL import Image

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
