"""What the page of a training shows of the data, and of the model's answers."""

import pandas as pd

from flows.pages.training import COLUMNS, changes
from tasks.data.image_table import FILE_NAME
from tasks.data.raw_images import ImageFiles
from tests.tasks.toy_data import png
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
    found = changes(images, source, *before)
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
    unread = changes(images, None, *before)
    assert unread["new images"]["pictures"] == [([], [("dog", ""), ("train/dog/new.png", "path")])]
    same = changes(images, source, images, source)
    assert {of["count"] for of in same.values()} == {0}
