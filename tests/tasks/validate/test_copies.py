"""Images that are others saved again: as the same pixels, or looking the same."""

import numpy as np
import pytest
from PIL import Image

from tests.tasks.toy_data import encoded
from tests.tasks.validate.validating import (
    CHECKS,
    NAMES,
    rejection,
    run,
)  # fmt: skip


def photos():
    """A smooth picture of its own for each name."""
    pixels = np.random.default_rng(0).integers(0, 256, (len(NAMES), 6, 6, 3), np.uint8)
    return {
        name: Image.fromarray(picture).resize((200, 200), Image.Resampling.BICUBIC)
        for name, picture in zip(NAMES, pixels, strict=True)
    }


@pytest.mark.parametrize("near_duplicates", ["report", "bad"])
def test_near_duplicates_across_splits_are_listed_or_bad(tmp_path, near_duplicates):
    pictures = photos()
    files = {name: encoded(picture, "JPEG", quality=95) for name, picture in pictures.items()}
    small = pictures["test/dog/1.png"].resize((48, 48))
    files["train/dog/again.jpg"] = encoded(small, "JPEG", quality=70)
    files["val/dog/again.jpg"] = encoded(pictures["val/dog/1.png"], "JPEG", quality=70)
    checks = CHECKS.model_copy(update={"near_duplicates": near_duplicates})
    if near_duplicates == "bad":
        [line, _] = rejection(tmp_path, files, checks)
        assert line == (
            "- images that look like one of a split held out from theirs: 1 of 20: "
            "train train/dog/again.jpg (it looks like one in test)"
        )
        return
    facts, folder = run(tmp_path, files, checks)
    assert facts["near_duplicates"] == 1
    assert (folder / "report/near_duplicates.csv").read_text().splitlines() == [
        "split,path,near_duplicate_split,near_duplicate_path",
        "train,train/dog/again.jpg,test,test/dog/1.png",
    ]
    docs = "".join(path.read_text() for path in (folder / "report").rglob("images.html"))
    assert "images that look like one of a split held out from theirs" in docs
