"""Which images are divided how: by their content, in groups, by time; and what growth changes."""

import hashlib
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from retrain.workload import Checks, Split
from tasks.data.perceptual_hash import THUMBNAIL
from tasks.validate.splits import NO_TIES, assign_splits, find_ties, ties_of

FRACTIONS = Split(val=0.1, test=0.2)


def divide(labels, pixels=None, **options):
    """The split of each image."""
    return divided(labels, pixels, **options)["split"].tolist()


def divided(labels, pixels=None, *, given=None, groups=None, times=None, prints=None, near=False,
            fractions=FRACTIONS, least=1, known=NO_TIES):  # fmt: skip
    """The images with their ties and splits, by their pixels' number."""
    size = len(labels)
    images = pd.DataFrame(
        {
            "split": pd.Series(given or [None] * size, dtype="str"),
            "label": labels,
            "pixels": [f"{number:x}" for number in (range(size) if pixels is None else pixels)],
            "fingerprint": prints or [0] * size,
            "time": times or [None] * size,
        }
    )
    of_pixels = images.groupby("pixels")["label"]
    images["is_divided"] = of_pixels.transform("min") == of_pixels.transform("max")
    thumbnails = np.zeros((size, THUMBNAIL), np.uint8) if near else None
    images["tie"] = find_ties(images, groups or [None] * size, thumbnails, known)
    checks = Checks(min_images_per_class_and_split=least)
    return images.assign(split=assign_splits(images, fractions, checks, by_time=times is not None))


def drawn(rng, classes, most):
    """Labels of classes of various sizes, from 1 up, and a number for the pixels of each image."""
    sizes = rng.integers(1, most + 1, classes)
    labels = [f"class {number}" for number, size in enumerate(sizes) for _ in range(size)]
    return labels, rng.permutation(10**6)[: len(labels)].tolist()


def test_large_classes_are_divided_in_the_given_fractions_and_always_alike():
    splits = divide(["a", "b"] * 5_000)
    shares = [splits.count(split) / 10_000 for split in ("train", "val", "test")]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.015)
    # Another digest would be other splits of everybody's data.
    assert hashlib.sha256(" ".join(splits).encode()).hexdigest()[:8] == "9fcfd303"


@pytest.mark.parametrize("least", [1, 2, 5])
def test_a_class_has_enough_images_in_each_split_where_it_has_three_times_as_many(least):
    """Whatever the order of the images is."""
    rng = np.random.default_rng(least)
    labels, pixels = drawn(rng, 140, 20)
    splits = divide(labels, pixels, least=least)
    order = rng.permutation(len(labels))
    shuffled = divide([labels[n] for n in order], [pixels[n] for n in order], least=least)
    assert shuffled == [splits[n] for n in order]
    counts = Counter(zip(labels, splits, strict=True))
    for label, images in Counter(labels).items():
        fewest = min(counts[label, split] for split in ("train", "val", "test"))
        assert fewest >= min(least, images // 3), (label, images)
        assert counts[label, "train"]


def test_no_training_image_is_ever_held_out_because_others_come():
    """But for classes so small that all their images would have been held out."""
    rng = np.random.default_rng(0)
    labels, pixels = drawn(rng, 300, 60)
    kept = np.flatnonzero(rng.random(len(labels)) < 0.9)
    before = divide([labels[n] for n in kept], [pixels[n] for n in kept])
    after = divide(labels, pixels)
    sizes = Counter(labels[n] for n in kept)
    pairs = zip(before, kept, strict=True)
    moved = Counter((split, after[n]) for split, n in pairs if sizes[labels[n]] >= 10)
    assert moved["train", "train"] > 3_000
    assert not moved["train", "val"] + moved["train", "test"] + moved["val", "test"]
    back = moved["test", "val"] + moved["test", "train"] + moved["val", "train"]
    assert back < 0.005 * moved.total()


PIXELS = np.random.default_rng(0).integers(0, 300, 1_000).tolist()
OF_PIXELS = [f"class {number % 40}" for number in PIXELS]
CLASSES = [f"class {number}" for number in np.random.default_rng(1).integers(0, 6, 4_000)]
PATIENTS = [
    f"patient {number}" if number else None
    for number in np.random.default_rng(2).integers(0, 400, 4_000)
]
PRINTS = np.random.default_rng(0).integers(1, 1 << 60, 100).tolist()
CHAINS = [p ^ ((1 << bits) - 1) for p in PRINTS for bits in (0, 3, 6, 9)]  # 3 bits by 3
WEEKS = [float(number // 7) for number in range(100)]


@pytest.mark.parametrize(
    ("labels", "options", "together", "are_one"),
    [
        (OF_PIXELS, {"pixels": PIXELS}, PIXELS, True),
        # Whatever they are called.
        (["class 0"] * 100 + OF_PIXELS[100:], {"pixels": PIXELS}, PIXELS, True),
        (CLASSES, {"groups": PATIENTS}, PATIENTS, True),
        *(  # an image of the first patient is the last one's, too
            (
                ["a"] * 100,
                {"groups": [f"{trial} {n // 10}" for n in range(100)], "pixels": [*range(99), 0]},
                [n // 10 % 9 for n in range(100)],
                True,
            )
            for trial in range(8)
        ),
        *(  # those that look the same, if the user says so
            (["a"] * 400, {"prints": CHAINS, "near": near}, np.arange(400) // 4, near)
            for near in (True, False)
        ),
        (["a"] * 100, {"times": WEEKS}, WEEKS, True),
    ],
)
def test_images_that_belong_together_are_in_one_split(labels, options, together, are_one):
    splits = pd.Series(divide(labels, **options))
    assert (splits.groupby(together).nunique() == 1).all() == are_one
    assert (splits.groupby(labels).nunique() == 3).all()


def test_a_group_keeps_its_split_when_its_images_and_others_come():
    groups = [f"patient {number % 100}" for number in range(1_000)]
    more = [*groups, *(f"new {number % 50}" for number in range(500))]
    before, after = (divide(["a"] * len(each), groups=each) for each in (groups[:500], more))
    assert before == after[:500] == after[500:1_000]
    # One without a group moves no other image.
    assert divide(["a"] * 1_500, groups=[None, *more[1:]])[1:] == after[1:]


def test_images_that_look_the_same_keep_their_split_when_others_come():
    prints = np.random.default_rng(0).integers(1, 1 << 60, 300).tolist()
    more = prints + [p ^ 3 for p in prints]  # each gets one that looks like it
    before = divided(["a"] * 300, near=True, prints=prints)
    assert divide(["a"] * 600, near=True, prints=more)[:300] != before["split"].tolist()
    after = divided(["a"] * 600, near=True, prints=more, known=ties_of(before))
    assert after["split"].tolist() == 2 * before["split"].tolist()
    # The champion's own images, and those that it was first divided with, are divided as they were.
    assert divided(["a"] * 600, near=True, prints=more, known=ties_of(after)).equals(after)
    fewer = after[150:].reset_index(drop=True)
    again = find_ties(fewer, [None] * 450, np.zeros((450, THUMBNAIL), np.uint8), ties_of(after))
    assert again.tolist() == fewer["tie"].tolist()


def test_no_training_image_is_held_out_because_one_comes_that_looks_like_it_and_like_others():
    prints = [p ^ bits for p in PRINTS for bits in (0, 0b111111)]
    before = divided(["a"] * 200, near=True, prints=prints)
    prints += [p ^ 0b111 for p in PRINTS]
    after = divided(["a"] * 300, near=True, prints=prints, known=ties_of(before))
    assert (before["tie"].nunique(), after["tie"].nunique()) == (200, 100)
    moved = Counter(zip(before["split"], after["split"][:200], strict=True))
    assert moved["test", "train"]
    assert not moved["train", "test"] + moved["train", "val"] + moved["val", "test"]


def test_the_newest_images_are_test_and_those_before_them_val():
    times = [float(40 * month + day) for month in range(1, 11) for day in range(1, 11)]
    order = np.random.default_rng(0).permutation(100)
    splits = divide(["a", "b"] * 50, times=[times[n] for n in order])
    assert splits == ["train" if n < 70 else "val" if n < 80 else "test" for n in order]


def test_the_images_of_a_group_are_as_old_as_the_newest_one():
    groups = [f"patient {number % 50}" for number in range(100)]
    splits = divide(["a"] * 100, times=[float(n) for n in range(100)], groups=groups)
    assert splits[:50] == splits[50:] == ["train"] * 35 + ["val"] * 5 + ["test"] * 10


@pytest.mark.parametrize(("there", "lacking"), [("test", "val"), ("val", "test")])
@pytest.mark.parametrize("times", [None, [float(number) for number in range(4_000)]])
def test_a_lacking_split_is_taken_out_of_train_alone(there, lacking, times):
    given = ["train"] * 3_000 + [there] * 1_000
    fractions = Split(val=0.2, test=0.2)
    splits = np.array(divide(["a"] * 4_000, given=given, times=times, fractions=fractions))
    assert (splits[3_000:] == there).all()
    assert {*splits[:3_000]} == {"train", lacking}
    assert (splits[:3_000] == lacking).mean() == pytest.approx(0.2, abs=0.025)
