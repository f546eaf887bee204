import hashlib

import pandas as pd
import pytest

from retrain.workload import Split
from tasks.splits import assign_splits, find_shared


def table(count, splits=None, sha256=None):
    """Rows about images with distinct contents."""
    return pd.DataFrame(
        {
            "sha256": sha256 or [hashlib.sha256(b"%d" % n).hexdigest() for n in range(count)],
            "split": pd.Series(splits or [None] * count, dtype="str"),
            "error": pd.Series([None] * count, dtype="str"),
        }
    )


def test_data_without_splits_is_split_by_content_in_the_given_fractions():
    split = assign_splits(table(10_000), Split(val=0.1, test=0.2))["split"]
    shares = split.value_counts(normalize=True)
    assert shares["train"] == pytest.approx(0.7, abs=0.015)
    assert shares["val"] == pytest.approx(0.1, abs=0.015)
    assert shares["test"] == pytest.approx(0.2, abs=0.015)


def test_images_keep_their_split_when_others_come():
    fractions = Split(val=0.1, test=0.2)
    before = assign_splits(table(1_000), fractions)["split"]
    after = assign_splits(table(3_000).iloc[::-1], fractions)["split"].sort_index()
    assert (after[:1_000] == before).all()


@pytest.mark.parametrize(("given", "lacking"), [("test", "val"), ("val", "test")])
def test_a_lacking_split_is_taken_out_of_train_alone(given, lacking):
    named = table(4_000, ["train"] * 3_000 + [given] * 1_000)
    split = assign_splits(named, Split(val=0.2, test=0.2))["split"]
    assert (split[3_000:] == given).all()
    assert set(split[:3_000]) == {"train", lacking}
    assert (split[:3_000] == lacking).mean() == pytest.approx(0.2, abs=0.025)


def test_given_splits_stay():
    splits = ["train"] * 50 + ["val"] * 5 + ["test"] * 5
    assert list(assign_splits(table(60, splits), Split())["split"]) == splits


def test_of_a_shared_image_the_copy_that_is_held_out_most_stays():
    shared = table(
        7,
        ["train", "val", "test", "train", "train", "val", "train"],
        ["a", "a", "a", "b", "b", "c", "c"],
    )
    assert find_shared(shared).fillna("").tolist() == ["test", "test", "", "", "", "", "val"]


def test_images_that_do_not_decode_are_not_said_to_be_shared():
    shared = table(2, ["train", "test"], ["a", "a"]).assign(error=["empty", "empty"])
    assert find_shared(shared).isna().all()
