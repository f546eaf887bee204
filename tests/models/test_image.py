import io
import struct
import sys
import zlib
from functools import partial

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from models.image import (
    FORMATS,
    ImageProperties,
    cut_array,
    inspect,
    reads_heic,
    to_array,
)
from tests.tasks.toy_data import HEIC, encoded

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255,) * 3, (0,) * 3
SMALL = {"size": 20, "channels": 3, "resize": "crop"}


def scene(width=40, height=30):
    """As uneven as a photo: patches of colour under a little noise."""
    random = np.random.default_rng(width + height)
    patches = random.integers(0, 256, (height // 20 + 2, width // 20 + 2, 3), np.uint8)
    image = Image.fromarray(patches).resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(image) + random.normal(0, 5, (height, width, 1))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def first_pixel(data, channels=3):
    image = Image.open(io.BytesIO(data))
    return tuple(to_array(data, image.width, channels, "stretch")[0, 0].tolist())


def palette(transparent: bool):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([*BLACK, *GREEN, *RED])
    return encoded(image, "PNG", transparency=1) if transparent else encoded(image, "PNG")


def colour_of_16_bits(value: int) -> bytes:
    """A PNG of 4 x 4 pixels with 16 bits a channel, which Pillow does not write."""
    lines = 4 * (b"\0" + np.full(12, value, ">u2").tobytes())
    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )


@pytest.mark.parametrize(
    ("data", "mode", "pixel"),
    [
        (encoded(Image.new("1", (4, 4), 1), "PNG"), "1", WHITE),
        (encoded(Image.new("L", (4, 4), 77), "PNG"), "L", (77, 77, 77)),
        (encoded(Image.new("L", (4, 4), 77), "PNG", transparency=77), "L", WHITE),
        (encoded(Image.new("LA", (4, 4), (77, 255)), "PNG"), "LA", (77, 77, 77)),
        (encoded(Image.new("LA", (4, 4), (77, 0)), "PNG"), "LA", WHITE),
        (palette(transparent=False), "P", GREEN),
        (palette(transparent=True), "P", WHITE),
        (encoded(Image.new("RGB", (4, 4), RED), "PNG"), "RGB", RED),
        (encoded(Image.new("RGB", (4, 4), RED), "PNG", transparency=RED), "RGB", WHITE),
        (encoded(Image.new("RGBA", (4, 4), (*BLUE, 255)), "PNG"), "RGBA", BLUE),
        (encoded(Image.new("RGBA", (4, 4), (*BLACK, 0)), "PNG"), "RGBA", WHITE),
        (encoded(Image.new("RGBA", (4, 4), (*BLACK, 51)), "PNG"), "RGBA", (204, 204, 204)),
        (encoded(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "TIFF"), "CMYK", RED),
        (encoded(Image.new("YCbCr", (4, 4), (76, 85, 255)), "TIFF"), "YCbCr", (254, 0, 0)),
        (encoded(Image.new("I;16", (4, 4), 65_535), "PNG"), "I;16", WHITE),
        (encoded(Image.new("I;16", (4, 4), 257 * 80), "PNG"), "I;16", (80, 80, 80)),
        (encoded(Image.new("I;16", (4, 4), 0), "PNG"), "I;16", BLACK),
        (encoded(Image.new("I;16", (4, 4), 4096), "PNG"), "I;16", (16, 16, 16)),
        (encoded(Image.new("I;16", (4, 4), 9000), "PNG", transparency=9000), "I;16", WHITE),
        (encoded(Image.new("I;16B", (4, 4), 257 * 80), "TIFF"), "I;16B", (80, 80, 80)),
        (encoded(Image.new("I", (4, 4), 257 * 80), "TIFF"), "I", (80, 80, 80)),
        (encoded(Image.new("I", (4, 4), 257 * 80), "PPM"), "I", (80, 80, 80)),
        (encoded(Image.new("F", (4, 4), 0.2), "TIFF"), "F", (51, 51, 51)),
        *((colour_of_16_bits(257 * shade), "RGB", (shade,) * 3) for shade in (80, 17, 0)),
        (colour_of_16_bits(4096), "RGB", (16, 16, 16)),
        # An AVIF file whose kind is general, as HEIC files have it, too.
        (
            encoded(Image.new("RGB", (9, 8), RED), "AVIF").replace(b"avif", b"mif1", 1),
            "RGB",
            (255, 0, 1),
        ),
        # JPEGs of this kind hold inverted values, as Adobe's programs write them.
        (encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95), "CMYK", RED),
    ],
    ids=lambda each: "" if isinstance(each, bytes) else None,
)
def test_every_mode_comes_out_as_it_looks(data, mode, pixel):
    assert inspect(data)[0].mode == mode
    assert np.abs(np.subtract(first_pixel(data), pixel)).max() <= (3 if mode == "CMYK" else 0)
    luma = np.dot(pixel, (0.299, 0.587, 0.114))
    assert first_pixel(data, channels=1)[0] == pytest.approx(luma, abs=2)


def beyond(mode: str, value: float) -> bytes:
    return encoded(Image.new(mode, (4, 4), value), "TIFF")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "^empty$"),
        (b"<html>404</html>", "not an image"),
        (encoded(scene(), "EPS"), "not an"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull$"),
        (
            encoded(scene(), "TIFF", tiffinfo={254: 1}),
            "^a camera's raw file: export",
        ),  # a thumbnail
        (encoded(scene(), "TIFF", tiffinfo={50706: 1}), "^a camera's raw file: export"),  # a DNG
        (beyond("I", -1), "values from -1 to -1"),
        (beyond("I", 65_536), "values from 65536 to 65536"),
        (beyond("I;16", 4095), r"end below a sixteenth .* camera of 12 bits"),
        (beyond("F", 200.0), "not from 0 to 1"),
        (beyond("F", float("nan")), "not from 0 to 1"),
        (b"P5 20000 10000 255\n", "^20000 x 10000 pixels are more than 180,000,000$"),
        (colour_of_16_bits(4095), r"end below a sixteenth .* camera of 12 bits"),
    ],
)
def test_what_is_no_image_or_too_dark_or_too_large_is_refused(data, said):  # EPS: Ghostscript
    for function in (inspect, lambda each: to_array(each, 16, 3, "crop")):
        with pytest.raises(ValueError, match=said):
            function(data)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"])
def test_every_format_decodes_and_a_truncated_file_does_not(format):
    data = encoded(scene(), format)
    assert to_array(data, 16, 3, "crop").shape == (16, 16, 3)
    for end in (len(data) // 2, 20, 3):
        for function in (inspect, partial(to_array, **SMALL)):
            with pytest.raises(ValueError, match=r".+"):
                function(data[:end])


def test_a_photo_of_108_million_pixels_is_decoded_reduced():
    photo = encoded(Image.new("L", (12_000, 9000)), "JPEG")  # black, so that it is small as a file
    properties, pixels = inspect(photo)
    assert (properties.width, properties.height, pixels.shape) == (12_000, 9000, (4500, 6000, 1))


def exif_of_a_rational(orientation: int) -> bytes:
    """EXIF data whose resolution is -1/0, which Pillow reads and cannot write."""
    tags = struct.pack("<HHIIHHII", 0x0112, 3, 1, orientation, 0x011A, 10, 1, 38)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + tags + struct.pack("<Iii", 0, -1, 0)


def test_a_large_profile_or_text_harms_no_image():
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "x" * 2_000_000, zip=True)
    for options in ({"pnginfo": text}, {"icc_profile": bytes(2_000_000)}):
        assert np.array_equal(inspect(encoded(scene(), "PNG", **options))[1], np.asarray(scene()))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_part_of_a_large_image_has_the_detail_that_the_prepared_image_lost(kind):
    board = 255 * (np.indices((480, 640)).sum(0) // 2 % 2).astype(np.uint8)
    data = encoded(Image.fromarray(board), kind)
    assert to_array(data, 32, 1, "crop").std() < 5
    left, top, right, bottom = 304, 112, 336, 144
    found = cut_array(data, 32, 1, lambda *sides: (left, top, right, bottom), 32 / 640)
    assert np.abs(found[..., 0] - board[top:bottom, left:right].astype(int)).mean() < 8


def test_a_part_of_an_image_that_has_the_size_already_is_scaled():
    part = (0, 0, 10, 10)
    found = cut_array(encoded(scene(20, 20), "PNG"), 20, 3, lambda *sides: part, 0.5)
    scaled = scene(20, 20).resize((20, 20), Image.Resampling.BICUBIC, box=part)
    assert np.array_equal(found, np.asarray(scaled))


def by_pillow(data, size, channels, resize):
    """What Pillow alone makes of an upright image."""
    image = Image.open(io.BytesIO(data)).convert("L" if channels == 1 else "RGB")
    box = (0, 0, *image.size)
    if resize == "crop":
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box), int).reshape(
        size, size, channels
    )


@pytest.mark.parametrize("resize", ["crop", "stretch"])
@pytest.mark.parametrize("size", [100, 50, 31, 16])
def test_a_large_jpeg_is_decoded_smaller_and_comes_out_nearly_the_same(size, resize):
    data = encoded(scene(643, 421), "JPEG", quality=90)
    for channels in (1, 3):
        difference = np.abs(
            to_array(data, size, channels, resize) - by_pillow(data, size, channels, resize)
        )
        assert 0 < difference.mean() < 1  # not all of it was decoded
        assert difference.max() < 12


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF"])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (33, 17), (64, 64)])
def test_pixels_are_those_that_pillow_finds(kind, size):
    data = encoded(scene(*size), kind, save_all=kind == "GIF", append_images=[scene()])
    for channels in (1, 3):
        for wanted, resize in ((size[0], "stretch"), (50, "crop"), (20, "crop")):
            expected = by_pillow(data, wanted, channels, resize)
            assert np.array_equal(to_array(data, wanted, channels, resize), expected)
    assert inspect(data)[0] == ImageProperties(
        *size, "P" if kind == "GIF" else "RGB", kind, None, None, kind == "GIF"
    )


# By the orientation in the EXIF data.
UPRIGHT = {
    1: lambda pixels: pixels,
    2: np.fliplr,
    3: partial(np.rot90, k=2),
    4: np.flipud,
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: partial(np.rot90, k=-1),
    7: lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize(("kind", "by"), [("JPEG", 1), ("JPEG", 8), ("PNG", 1), ("WEBP", 1)])
def test_an_image_is_the_right_way_up_also_by_exif_data_that_cannot_be_written(
    kind, by, orientation
):
    data = encoded(scene(640, 416), kind, exif=exif_of_a_rational(orientation), quality=95)
    upright = Image.fromarray(UPRIGHT[orientation](np.asarray(scene(640, 416))))
    properties, pixels = inspect(data, reduced=by > 1)
    assert (properties.width, properties.height) == upright.size
    small = upright.reduce(by)
    assert pixels.shape == (small.height, small.width, 3)
    assert np.abs(pixels - np.asarray(small).astype(np.float64)).mean() < 4
    expected = to_array(encoded(upright, "PNG"), 30, 3, "stretch").astype(int)
    assert np.abs(to_array(data, 30, 3, "stretch") - expected).mean() < 4


@pytest.mark.parametrize("progressive", [False, True])
def test_damage_is_found_in_a_jpeg_that_is_decoded_smaller(progressive):
    whole = encoded(scene(400, 300), "JPEG", progressive=progressive)
    random, refused = np.random.default_rng(0), 0
    for place in random.integers(2, len(whole), 50):
        changed = whole[:place] + bytes([random.integers(256)]) + whole[place + 1 :]
        for data in (whole[:place], changed):
            try:
                Image.open(io.BytesIO(data), formats=FORMATS).load()
                inspect(data, reduced=True)
                to_array(data, 20, 3, "crop")
            except (OSError, SyntaxError):  # of Pillow, which decodes all of it
                refused += 1
                for function in (partial(inspect, reduced=True), partial(to_array, **SMALL)):
                    with pytest.raises(ValueError, match=r".+"):
                        function(data)
    assert refused > 30


def test_a_photo_of_a_phone_is_read():
    assert to_array(HEIC, 32, 1, "crop")[::16, ::16, 0].tolist() == [[250, 20], [20, 250]]


def test_a_photo_of_a_phone_names_the_package_that_reads_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    monkeypatch.setattr("models.image.reads_heic", reads_heic.__wrapped__)
    with pytest.raises(ValueError, match=r"^HEIC, which needs a package: pip install pi-heif$"):
        inspect(HEIC)
