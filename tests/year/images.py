"""The images of the year: handwritten digits, and from some week on their negatives."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO

import numpy as np
from PIL import Image

from tests.year.plan import Plan

WRONG = 0.15  # of the labels of the delivery with wrong ones


@dataclass(frozen=True)
class Picture:
    """An image that came in.

    Attributes:
        name: Of its file.
        label: The digit that it shows.
        given: The digit that people say it shows.
        content: The file.
    """

    name: str
    label: str
    given: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Of the file, in hex."""
        return hashlib.sha256(self.content).hexdigest()


def pictures(plan: Plan, week: int) -> Iterator[Picture]:
    """The images that come in in a week."""
    random = np.random.default_rng(week + 1000)
    for number in plan.numbers(week):
        pixels, label = _digit(number)
        given = label
        if week == plan.noise - plan.lag and random.random() < WRONG:
            given = (label + random.integers(1, 10)) % 10
        if week >= plan.drift:
            pixels = 255 - pixels
        yield Picture(f"{number:05}.png", str(label), str(given), _png(pixels))


def first_pictures(plan: Plan) -> Iterator[Picture]:
    """The images that there are in week 0."""
    for number in range(plan.first):
        pixels, label = _digit(number)
        yield Picture(f"{number:05}.png", str(label), str(label), _png(pixels))


def _digit(number: int) -> tuple[np.ndarray, int]:
    """An image (uint8, 8 x 8) and what it shows; when all have come, they come again, shifted."""
    images, labels = _digits()
    turn, place = divmod(number, len(images))
    return np.roll(images[place], turn, axis=turn % 2), int(labels[place])


@cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    source = load_digits()
    order = np.random.default_rng(0).permutation(len(source.target))
    return np.round(source.images * (255 / 16)).astype(np.uint8)[order], source.target[order]


def _png(pixels: np.ndarray) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()
