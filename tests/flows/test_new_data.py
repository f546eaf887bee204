"""Data that grows from week to week, in a clone with DVC: what is new is seen, and what is old."""

import shutil

import pytest

from tests.flows.conftest import draw_photos
from tests.flows.test_train import settings

OPTIONS = {
    "data.path": "data/shapes",
    "data.expect_new": 7,
    "images.channels": 3,
    "images.size": 8,
    "gate.slices": "[week]",
    "gate.no_worse": '["accuracy[new]"]',
    "gate.min_compared": 1,
    "gate.margin": 0.9,
}
TRAIN = ["--as", "shapes", *settings(OPTIONS)]


def commit(clone, day):
    clone.run("dvc", "add", "-q", "data")
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    at = f"{day}T12:00:00+0000"
    clone.run("git", *who, "commit", "-qm", "data", "data.dvc", GIT_COMMITTER_DATE=at)


def images(document, column):
    """The test images of each slice of a column."""
    slices = document["decision"]["slices"]
    return {each["value"]: each["images"] for each in slices if each["column"] == column}


@pytest.mark.slow
def test_what_is_new_to_the_champion_is_compared_and_weeks_are_known(clone, tmp_path):
    clone.run("dvc", "pull", "-q", "data")
    shapes = draw_photos(clone.root / "data" / "shapes", each=20)
    commit(clone, "2026-10-05")
    first = clone.train(*TRAIN)
    tested = first["metrics"]["rows"]
    assert (first["decision"]["new_images"], images(first, "new")) == (None, {})
    assert images(first, "week") == {"2026-W41": tested}
    old = "The newest version of the data is "
    again = clone.retrain("train", "vit", *TRAIN)
    assert again.stdout.startswith("Nothing changed since run ")
    assert old in again.stderr

    for file in draw_photos(tmp_path / "more", each=20, size=20).glob("*/*.png"):
        shutil.copy(file, shapes / file.parent.name / f"new-{file.name}")
    commit(clone, "2026-11-10")
    grown = clone.train(*TRAIN, "--set", "train.lr=0.002")
    new = grown["metrics"]["rows"] - tested
    assert new > 0
    assert grown["decision"]["new_images"] == new
    assert images(grown, "new") == {"yes": new}
    assert images(grown, "week") == {"2026-W41": tested, "2026-W46": new}
    rules = [rule["rule"].split(" not")[0] for rule in grown["decision"]["rules"]]
    assert "accuracy[new=yes]" in rules
    said = [sentence for sentence in grown["decision"]["says"] if " new: the data of " in sentence]
    assert said[0].startswith(f"{new} of {tested + new} test images (")
    page = next((clone.root / "reports" / "shapes").glob(f"{grown['run']}.html")).read_text()
    assert f"{new:,} of {tested + new:,} (" in page
    assert [warning for warning in grown["warnings"] if warning.startswith(old)]
