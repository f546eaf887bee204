"""Mutated images."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

from tests.fuzz.case import Maker, Random, choose, damaged, flipped

FORMATS = {
    "JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp", "TIFF": ".tif",
    "PPM": ".ppm", "AVIF": ".avif", "JPEG2000": ".jp2",
}  # fmt: skip
ENDINGS = list(FORMATS.values())
# Modes that a format stores; some are rare.
MODES = (
    ("1", "PNG"), ("L", "JPEG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("P", "GIF"),
    ("RGBA", "PNG"), ("RGBA", "WEBP"), ("RGBA", "TIFF"), ("CMYK", "JPEG"), ("CMYK", "TIFF"),
    ("YCbCr", "TIFF"), ("I;16", "PNG"), ("I;16", "TIFF"), ("I", "TIFF"), ("F", "TIFF"),
)  # fmt: skip
OTHERS = (
    b"", bytes(100), bytes(5000),
    b"<html><body>404 not found</body></html>",
    b'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40"/>',
    b"%PDF-1.7\n1 0 obj\n",
    b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
    b"\x7fELF" + bytes(100),
    b"\x00\x00\x00\x18ftypheic" + bytes(100),
)  # fmt: skip


def picture(rng: Random, mode: str = "RGB") -> Image.Image:
    """A picture that no other case has, 16 to 48 pixels on each side."""
    width, height = rng.integers(16, 49, 2)
    y, x = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin(x * a + y * b + c) for a, b, c in rng.random((3, 3)) * 3]
    pixels = np.stack(waves, axis=-1).astype(np.uint8)
    numbers = {"F": np.float32(1 / 255), "I": np.int32(257), "I;16": np.uint16(257)}
    if mode in numbers:  # as the values of such images usually are
        return Image.fromarray(pixels[..., 0] * numbers[mode])
    return Image.fromarray(pixels).convert(mode)


def encode(image: Image.Image, format: str, **options) -> bytes:
    """The image as a file."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def _any(rng: Random):
    format = choose(rng, list(FORMATS))
    return FORMATS[format], encode(picture(rng), format), True


def _appended(rng: Random):
    format = choose(rng, ["JPEG", "PNG", "GIF", "BMP"])
    return FORMATS[format], encode(picture(rng), format) + rng.bytes(50), True


def _modes(rng: Random):
    mode, format = choose(rng, MODES)
    return FORMATS[format], encode(picture(rng, mode), format), True


def _animated(rng: Random):
    format = choose(rng, ["GIF", "PNG", "WEBP", "TIFF"])
    first = picture(rng)
    more = [first.rotate(angle) for angle in (30, 60)]
    return FORMATS[format], encode(first, format, save_all=True, append_images=more), True


def _exif(rng: Random):
    format = choose(rng, ["JPEG", "PNG", "WEBP", "TIFF"])
    exif = Image.Exif()
    exif[0x0112] = int(choose(rng, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65_535]))
    exif[0x010E] = "x" * int(rng.integers(0, 20_000))
    data = encode(picture(rng), format, exif=exif)
    place = data.find(b"Exif")
    if place < 0 or rng.random() < 0.5:
        return FORMATS[format], data, True
    broken = flipped(rng, data[place : place + 60])  # the directory
    return FORMATS[format], data[:place] + broken + data[place + 60 :], None


def _huge(rng: Random):
    """A small file that declares a huge image."""
    side = int(choose(rng, [20_000, 60_000, 65_500]))
    format = choose(rng, ["PNG", "BMP", "JPEG"])
    data = bytearray(encode(picture(rng), format))
    if format == "PNG":
        data[16:24] = struct.pack(">II", side, side)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    elif format == "BMP":
        data[18:26] = struct.pack("<ii", side, side)
    else:
        place = data.index(b"\xff\xc0")
        data[place + 5 : place + 9] = struct.pack(">HH", side, side)
    return FORMATS[format], bytes(data), False


MAKERS: dict[str, Maker] = {
    "unchanged": _any,
    **damaged(_any),
    "bytes appended": _appended,
    "wrong extension": lambda rng: (choose(rng, ENDINGS), *_any(rng)[1:]),
    "rare modes": _modes,
    "animated": _animated,
    "EXIF": _exif,
    "huge declared size": _huge,
    "no image": lambda rng: (choose(rng, ENDINGS), choose(rng, OTHERS) + rng.bytes(8), False),
}
