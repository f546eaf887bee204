import hashlib

import numpy as np
import pyarrow as pa
import pytest

from retrain.workload import Split
from tasks.data.splits import assign_splits


def table(count, splits=None):
    """Rows about images with distinct contents."""
    return pa.table(
        {
            "sha256": [hashlib.sha256(b"%d" % n).hexdigest() for n in range(count)],
            "split": pa.array(splits or [None] * count, pa.string()),
        }
    )


def assign(images, fractions):
    """The split of each image, when there are no others."""
    present = set(images["split"].to_pylist()) - {None}
    return np.array(assign_splits(images, present, fractions)["split"].to_pylist())


def test_data_without_splits_is_split_by_content_in_the_given_fractions():
    split = assign(table(10_000), Split(val=0.1, test=0.2))
    assert (split == "train").mean() == pytest.approx(0.7, abs=0.015)
    assert (split == "val").mean() == pytest.approx(0.1, abs=0.015)
    assert (split == "test").mean() == pytest.approx(0.2, abs=0.015)


def test_the_first_digits_of_the_content_decide():
    digits = ["0" * 64, "3" + "0" * 63, "33333" + "0" * 59, "4" + "0" * 63, "f" * 64]
    images = pa.table({"sha256": digits, "split": pa.nulls(5, pa.string())})
    # 0x3 / 0x10 is 0.1875 and 0x33333 / 0x100000 just below a fifth.
    assert list(assign(images, Split(val=0.1, test=0.2))) == [
        *("test", "test", "test", "val", "train")
    ]


def test_images_keep_their_split_when_others_come():
    fractions = Split(val=0.1, test=0.2)
    before = assign(table(1_000), fractions)
    after = assign(table(3_000).take(np.arange(3_000)[::-1]), fractions)[::-1]
    assert (after[:1_000] == before).all()


@pytest.mark.parametrize(("given", "lacking"), [("test", "val"), ("val", "test")])
def test_a_lacking_split_is_taken_out_of_train_alone(given, lacking):
    split = assign(table(4_000, ["train"] * 3_000 + [given] * 1_000), Split(val=0.2, test=0.2))
    assert (split[3_000:] == given).all()
    assert set(split[:3_000]) == {"train", lacking}
    assert (split[:3_000] == lacking).mean() == pytest.approx(0.2, abs=0.025)


def test_a_part_of_the_images_is_split_as_all_of_them_are():
    fractions = Split(val=0.1, test=0.2)
    images = table(1_000, ["train"] * 900 + ["test"] * 100)
    part = assign_splits(images.slice(0, 500), {"train", "test"}, fractions)
    assert (assign(images, fractions)[:500] == part["split"].to_numpy()).all()


def test_given_splits_stay():
    splits = ["train"] * 50 + ["val"] * 5 + ["test"] * 5
    assert list(assign(table(60, splits), Split())) == splits
