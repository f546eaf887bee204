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


def decoded(image, kind="PNG", **options):
    return inspect(encoded(image, kind, **options))[1]


def again(mode, **options):
    """The pixels of a JPEG, and of a copy of it without loss."""
    data = encoded(PHOTO.convert(mode), "JPEG", **options)
    return inspect(data)[1], decoded(Image.open(io.BytesIO(data)))


GREY = PHOTO.convert("L")
IN_COLOUR = np.asarray(GREY.convert("RGB"))
LAST = np.arange(IN_COLOUR.size).reshape(IN_COLOUR.shape) == IN_COLOUR.size - 3  # of all pixels
BLACK = np.zeros((4, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        # An image is the same in every format without loss.
        *((decoded(PHOTO, kind), decoded(PHOTO), True) for kind in ("BMP", "TIFF", "PPM")),
        (decoded(PHOTO, "WEBP", lossless=True), decoded(PHOTO), True),
        *((*again(mode), True) for mode in ("RGB", "L")),
        *((*again(mode, progressive=True), True) for mode in ("RGB", "L")),
        (*again("RGB", subsampling="4:4:4"), True),
        # A grey one is in one channel what it is in three.
        (IN_COLOUR, decoded(GREY), True),
        (IN_COLOUR ^ LAST, decoded(GREY), False),
        # Another pixel or another shape is another image.
        (BLACK, BLACK.reshape(6, 4, 3), False),
        (BLACK, BLACK[:, :4], False),
        (BLACK, BLACK + np.eye(4, 6, 2, np.uint8)[..., None], False),
    ],
)
def test_an_image_is_the_same_by_its_pixels(one, other, is_same):
    assert (digest(one) == digest(other)) is is_same


def test_the_facts_of_an_image_are_those_before_it_is_resized():
    facts = {"side": 12, "aspect": 2.25, "brightness": 0.5, "contrast": 12**-0.5}
    assert measure(png(1, width=18, height=8)) == pytest.approx(facts, abs=0.05)
    assert measure(b"no image") is None
