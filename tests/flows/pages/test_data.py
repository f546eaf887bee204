"""What a page shows of the data, and of what has changed in it."""

import pandas as pd

from flows.pages import data
from flows.pages.blocks import Gallery, Heading
from flows.pages.data import COLUMNS, Before
from tasks.data.image_table import FILE_NAME
from tasks.data.raw_dataset import open_format
from tests.tasks.toy_data import png
from tests.tasks.validate.validating import FILES, run


def checked(folder, files):
    """The accepted images, and what reads them."""
    _, validated = run(folder, files)
    images = pd.read_parquet(validated / FILE_NAME, columns=COLUMNS)
    return images, open_format("folders", folder / "data")


def galleries(blocks):
    """The alternative texts and first lines of each gallery, by the heading before it."""
    found, heading = {}, ""
    for block in blocks:
        if isinstance(block, Heading):
            heading = block.text
        elif isinstance(block, Gallery):
            found[heading] = [
                (picture.thumbnails[0].alt, picture.lines[0].text) for picture in block.pictures
            ]
    return found


def test_what_is_new_gone_and_relabelled_since_the_champion_is_shown(tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    images, source = checked(tmp_path / "old", FILES)
    before = Before("version 1", images, source)
    files = dict(FILES)
    del files["train/cat/0.png"]
    files["train/dog/new.png"] = png(500)
    files["train/dog/moved.png"] = files.pop("train/cat/1.png")
    images, source = checked(tmp_path / "new", files)
    assert galleries(data.changes(images, source, before)) == {
        "New images": [("train/dog/new.png", "dog")],
        "Images that are gone": [("train/cat/0.png", "cat")],
        "Images with another label": [("train/dog/moved.png", "cat → dog")],
    }


def test_the_same_images_are_said_to_be_the_same(tmp_path):
    images, source = checked(tmp_path, FILES)
    blocks = [*data.changes(images, source, Before("version 1", images, source))]
    assert galleries(blocks) == {}
    assert blocks[-1].text == "The same images, with the same labels, in the same splits."
