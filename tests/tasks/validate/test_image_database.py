from contextlib import closing

import pyarrow as pa
import pytest

from retrain.workload import Checks
from tasks.validate.image_database import ImageDatabase
from tasks.validate.scan import schema

CHECKS = Checks()


@pytest.fixture
def database(tmp_path):
    with closing(ImageDatabase(tmp_path / "images.sqlite")) as database:
        yield database


def table(splits, *, contents=None, fingerprints=None, labels="a", error=None):
    """Rows about images of 8 x 4 pixels."""
    count = len(splits)
    contents = contents or range(count)
    known = {
        "unit": [0] * count,
        "split": splits,
        "label": [labels] * count if isinstance(labels, str) else labels,
        "error": pa.array([error] * count, pa.string()),
        "width": [8] * count,
        "height": [4] * count,
        "pixels": [None if error else str(content) for content in contents],
        "fingerprint": list(range(1, count + 1)) if fingerprints is None else fingerprints,
    }
    others = {field.name: pa.nulls(count, field.type) for field in schema()}
    return pa.table(others | known)


def column(database, name):
    """A column of all images."""
    return [row[name] for row in database.select(f"SELECT {name} FROM images ORDER BY image")]


def test_of_a_shared_image_the_copy_that_is_held_out_most_stays(database):
    splits = ["train", "val", "test", "train", "train", "val", "train"]
    images = table(splits, contents=["a", "a", "a", "b", "b", "c", "c"])
    database.add(images.slice(0, 4))
    database.add(images.slice(4))
    database.find("also_in")
    assert column(database, "also_in") == ["test", "test", None, None, None, None, "val"]


def test_images_that_do_not_decode_are_not_said_to_be_shared(database):
    database.add(table(["train", "test"], contents=["a", "a"], error="empty"))
    database.find("also_in")
    assert column(database, "also_in") == [None, None]


@pytest.mark.parametrize(
    ("checks", "unknown"),
    [
        (CHECKS, [None, None, None, "it's \\n"]),
        (Checks(labels=("it's \\n",)), ["a", None, "a", None]),
    ],
)
def test_unknown_labels_are_those_that_are_not_listed_or_not_in_train(database, checks, unknown):
    database.add(table(["train", "train", "test", "test"], labels=["a", None, "a", "it's \\n"]))
    database.learn_labels(checks.labels)
    database.find("unknown_label")
    assert column(database, "unknown_label") == unknown


def test_accepted_images_are_counted_by_class_and_split(database):
    database.add(table(["train", "train", "test", "val"], labels=["b", "a", "a", "a"]))
    checks = Checks(labels=("c", "a", "b"))
    database.learn_labels(checks.labels)
    database.find("unknown_label")
    database.set_aside(0, "SELECT image FROM images WHERE image = 3")
    database.set_aside(1, "SELECT image FROM images WHERE image = 3")
    database.count_accepted(checks)
    rows = database.select("SELECT * FROM classes")
    assert [tuple(row) for row in rows] == [("a", 1, 0, 1, 2), ("b", 1, 0, 0, 1), ("c", 0, 0, 0, 0)]
    splits = [tuple(row) for row in database.select("SELECT * FROM splits")]
    assert splits == [("train", 2), ("val", 0), ("test", 1)]
    [accepted], [failures] = database.accepted(), database.failures()
    assert [row["label"] for row in accepted] == ["b", "a", "a"]
    assert [(row["image"], row["rule"]) for row in failures] == [(3, 0), (3, 1)]


def test_the_same_pixels_under_two_labels_are_a_conflict(database):
    contents = ["a", "a", "b", "b", "c", "c", "c", "c"]
    labels = ["x", "y", "x", "x", "z", "x", "y", None]
    database.add(table(["train"] * 8, contents=contents, labels=labels))
    database.find("other_label")
    assert column(database, "other_label") == ["y", "x", None, None, "x", "z", "x", None]


def test_near_duplicates_are_found_in_later_splits_alone(database):
    splits = ["train", "val", "val", "test", "train", "train", "test", "train"]
    prints = [0b1, 0b11, 0xFF000000000, 0xFE000000000, 0xF0000, 0xF0000, 0xFF0000000, 0]
    database.add(table(splits, fingerprints=prints))
    database.find("also_in")
    database.find_near_duplicates()
    found = column(database, "near_duplicate_in")
    assert found == ["val", None, "test", None, None, None, None, None]
    assert column(database, "near_duplicate") == [1, None, 3, None, None, None, None, None]
    count = "SELECT COUNT(*) FROM near_duplicates"
    assert database.number(count) == 2
    database.set_aside(0, "SELECT image FROM images WHERE image = 0")
    assert database.number(count) == 1
