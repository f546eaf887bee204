import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from models.image import inspect
from tasks.data import perceptual_hash
from tasks.data.perceptual_hash import (
    BITS,
    THUMBNAIL,
    fingerprints,
    look_alikes,
    near_duplicates,
    shrink,
)
from tests.tasks.toy_data import encoded


def same(places: np.ndarray) -> np.ndarray:
    """Thumbnails that are all the same."""
    return np.zeros((len(places), THUMBNAIL), np.uint8)


PHOTOS = [  # smooth ones
    Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8)).resize(
        (128, 96), Image.Resampling.BICUBIC
    )
    for random in map(np.random.default_rng, range(100))
]


@pytest.mark.parametrize(
    "change",
    [
        lambda image: encoded(image, "PNG"),
        lambda image: encoded(image, "JPEG", quality=60),
        lambda image: encoded(image.resize((384, 288), Image.Resampling.BICUBIC), "JPEG"),
        lambda image: encoded(image.resize((96, 72), Image.Resampling.BICUBIC), "WEBP"),
        lambda image: encoded(image.convert("L"), "PNG"),
        lambda image: encoded(image.point(lambda value: value * 9 // 10), "PNG"),
    ],
)
def test_a_copy_of_an_image_looks_like_it(change):
    files = [encoded(image, "JPEG", quality=95) for image in PHOTOS] + [*map(change, PHOTOS)]
    prints, thumbnails = fingerprints([shrink(inspect(data)[1]) for data in files])
    found = near_duplicates(prints, np.repeat([1, 0], 100), lambda places: thumbnails[places])
    assert (found[:100] == -1).all()
    assert np.mean(found[100:] == np.arange(100)) >= 0.85
    assert np.isin(found, [-1, *range(100)]).all()


def test_handwritten_digits_with_near_fingerprints_are_no_copies():
    digits = (load_digits().images * 15).astype(np.uint8)[..., None]
    prints, thumbnails = fingerprints([*map(shrink, digits)])
    by_fingerprint = look_alikes(prints, same)
    assert (by_fingerprint[0] != by_fingerprint[1]).any()
    one, other = look_alikes(prints, lambda places: thumbnails[places])
    assert np.array_equal(one, other)


def test_an_image_of_one_colour_looks_like_nothing():
    plain = [np.full((height, 20, 3), 200, np.uint8) for height in (1, 8, 40)]
    assert fingerprints([*map(shrink, plain)])[0].tolist() == [0, 0, 0]
    assert near_duplicates(np.zeros(2, np.int64), np.array([0, 1]), same).tolist() == [-1, -1]


@pytest.mark.parametrize("at_a_time", [2**18, 300])
def test_near_duplicates_are_those_of_a_comparison_of_all_pairs(monkeypatch, at_a_time):
    monkeypatch.setattr(perceptual_hash, "_IMAGES", at_a_time)
    random = np.random.default_rng(0)
    prints = random.integers(1, 2**62, 1_000)
    for place in range(500):  # copies with 0 to 4 changed bits
        changed = random.choice(63, place // 100, replace=False)
        prints[place + 500] = prints[place] ^ sum(1 << int(bit) for bit in changed)
    ranks = random.integers(0, 3, 1_000)
    close = (np.bitwise_count(prints[:, None] ^ prints) <= BITS) & (ranks[:, None] < ranks)
    found = near_duplicates(prints, ranks, same)
    assert (found >= 0).tolist() == close.any(axis=1).tolist()
    assert 200 < (found >= 0).sum() < 300
    assert close[found >= 0, found[found >= 0]].all()


def test_many_equal_images_are_compared_too():
    ranks = np.arange(100_000) % 3
    found = near_duplicates(np.full(100_000, 5), ranks, same)
    assert (found >= 0).tolist() == (ranks < 2).tolist()
