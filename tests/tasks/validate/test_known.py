"""What an earlier validation has found is taken, and the output is what it is from nothing."""

import pytest

from models.image import inspect
from retrain.outputs import list_files
from tasks.compute import ray_data
from tasks.data import units
from tasks.validate import scan
from tests.tasks.toy_data import png
from tests.tasks.validate.validating import FILES, TOLERANT, again, run

# A copy under another name and in another class's folder, other bytes of a known image, and one
# that does not decode, which is looked at again each time.
CHANGED = {
    "train/cat/new.png": png(77),
    "train/dog/other.bmp": again(FILES["train/dog/0.png"], "BMP"),
    "train/dog/broken.png": b"broken",
}


def content(folder):
    """The files of an output, but for what Great Expectations says of times."""
    return [file for file in list_files(folder) if not file["path"].startswith("report/")]


def two_weeks(tmp_path, monkeypatch):
    """The folder of the second week from the first, and that from nothing."""
    monkeypatch.setattr(units, "WORTH_ROWS", 3)
    places = [tmp_path / name for name in ("first", "second", "anew")]
    _, earlier = run(places[0], FILES | {"train/dog/broken.png": b"broken"}, TOLERANT)
    moved = dict(FILES)
    moved["train/cat/moved.png"] = moved.pop("train/cat/0.png")
    second, anew = (
        run(place, moved | CHANGED, TOLERANT, earlier=each)
        for place, each in zip(places[1:], (earlier, None), strict=True)
    )
    assert second[0] == anew[0]
    return second[1], anew[1]


def test_only_new_images_are_decoded_and_nothing_else_is_different(tmp_path, monkeypatch, caplog):
    decoded = []

    def noted(data, *others):
        decoded.append(data)
        return inspect(data, *others)

    monkeypatch.setattr(scan, "inspect", noted)
    second, anew = two_weeks(tmp_path, monkeypatch)
    assert content(second) == content(anew)
    everything = len(FILES) + 3
    assert len(decoded) == len(FILES) + 1 + 3 + everything
    assert set(decoded[len(FILES) + 1 :][:3]) == set(CHANGED.values())
    assert f"validate: {everything - 3} of {everything} images were known" in caplog.text


@pytest.mark.slow
def test_the_machines_of_ray_take_them_too(tmp_path, monkeypatch, caplog, ray_session):
    monkeypatch.setattr(ray_data, "START", 0.0)
    second, anew = two_weeks(tmp_path, monkeypatch)
    assert content(second) == content(anew)
    assert "18 of 21 images were known" in caplog.text
