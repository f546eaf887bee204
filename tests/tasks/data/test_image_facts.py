import io

import numpy as np
import pytest
from PIL import Image

from models.image import inspect
from tasks.data.image_facts import digest, measure
from tests.tasks.toy_data import encoded, png

PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)).resize(
    (600, 400), Image.Resampling.BICUBIC
)


def identity(data):
    return digest(inspect(data)[1])


def jpeg(mode, **options):
    return encoded(PHOTO.convert(mode), "JPEG", **options)


@pytest.mark.parametrize(
    "data",
    [
        *(encoded(PHOTO, kind) for kind in ("BMP", "TIFF", "PPM")),
        encoded(PHOTO, "WEBP", lossless=True),
        *(jpeg(mode) for mode in ("RGB", "L")),
        *(jpeg(mode, progressive=True) for mode in ("RGB", "L")),
        jpeg("RGB", subsampling="4:4:4"),
    ],
)
def test_an_image_is_the_same_in_every_format_without_loss(data):
    assert identity(data) == identity(encoded(Image.open(io.BytesIO(data)), "PNG"))


def test_a_grey_image_is_the_same_in_one_channel_and_in_three():
    grey = PHOTO.convert("L")
    colour = np.asarray(grey.convert("RGB")).copy()
    assert digest(colour) == identity(encoded(grey, "PNG"))
    colour[-1, -1, 0] ^= 1  # the last of all pixels
    assert digest(colour) != identity(encoded(grey, "PNG"))


def test_another_pixel_or_another_shape_is_another_image():
    pixels = np.zeros((4, 6, 3), np.uint8)
    others = [pixels.reshape(6, 4, 3), pixels[:, :4], pixels + np.eye(4, 6, 2, np.uint8)[..., None]]
    assert len({digest(each) for each in (pixels, *others)}) == 4


def test_the_facts_of_an_image_are_those_before_it_is_resized():
    facts = {"side": 12, "aspect": 2.25, "brightness": 0.5, "contrast": 12**-0.5}
    assert measure(png(1, width=18, height=8)) == pytest.approx(facts, abs=0.05)
    assert measure(b"no image") is None
