"""What a page shows of what has changed in the data."""

import pandas as pd

from flows.pages import data
from flows.pages.data import COLUMNS
from retrain.project import Project
from retrain.store import Artifact
from tasks.data.image_table import FILE_NAME
from tasks.data.reading import ImageFiles
from tests.tasks.toy_data import encoded, png, pulled
from tests.tasks.validate.test_copies import photos
from tests.tasks.validate.validating import FILES, run


def checked(folder, files):
    """The accepted images, and what reads them."""
    _, validated = run(folder, files)
    images = pd.read_parquet(validated / FILE_NAME, columns=COLUMNS)
    return images, ImageFiles(folder / "data")


def test_what_is_new_gone_and_relabelled_since_the_champion_is_shown(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    before = checked(tmp_path / "old", FILES)
    files = dict(FILES)
    del files["train/cat/0.png"]
    files["train/dog/new.png"] = png(500)
    files["train/dog/moved.png"] = files.pop("train/cat/1.png")
    images, source = checked(tmp_path / "new", files)
    found = data.changes(images, source, *before)
    shown = {
        name: [(images[0]["alt"], lines[0][0]) for images, lines in of["pictures"]]
        for name, of in found.items()
    }
    assert shown == {
        "new images": [("train/dog/new.png", "dog")],
        "images that are gone": [("train/cat/0.png", "cat")],
        "images with another label": [("train/dog/moved.png", "cat → dog")],
        "images in another split": [],
    }
    unread = data.changes(images, None, *before)
    assert unread["new images"]["pictures"] == [([], [("dog", ""), ("train/dog/new.png", "path")])]
    same = data.changes(images, source, images, source)
    assert {of["count"] for of in same.values()} == {0}


def test_images_that_look_alike_in_two_splits_are_shown_side_by_side(tmp_path):
    pictures = photos()
    files = {name: encoded(picture, "JPEG", quality=95) for name, picture in pictures.items()}
    small = pictures["test/dog/1.png"].resize((48, 48))
    files["train/dog/again.jpg"] = encoded(small, "JPEG", quality=70)
    facts, folder = run(tmp_path, files)
    made = {
        "pull": pulled(tmp_path),
        "validate": Artifact("validate", "key", "digest", folder, facts),
    }
    document = {"workload": "digits", "champion": None}
    found = data.content(Project(tmp_path), document, made)["look_alike"]
    [(images, lines)] = found["pictures"]
    assert found["count"] == 1
    assert [image["alt"] for image in images] == ["train/dog/again.jpg", "test/dog/1.png"]
    assert lines[0] == ("train and test", "")
