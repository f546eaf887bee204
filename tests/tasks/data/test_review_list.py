"""What people label with: tasks of Label Studio, a CSV file, and copies of the images."""

import csv
import json
import os
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from PIL import Image

from retrain import gc
from retrain.project import Project
from tasks.data import review_list
from tasks.data.reading import ImageFiles
from tests.tasks.toy_data import HEIC, encoded, png

HOSTILE = 'a"><script>, \n=1+1.png'


def write(root: Path, name: str, images: dict[str, bytes], classes=()) -> dict[str, str]:
    """Writes a list of all images of a folder; returns where a person finds it."""
    (root / "data").mkdir(exist_ok=True)
    rows = []
    for file, data in images.items():
        (root / "data" / file).write_bytes(data)
        known = {"path": HOSTILE, "file": file, "row": 0, "sha256": sha256(data).hexdigest()}
        answer = {"why": review_list.WRONG_LABEL, "proposed": "<dog> & co", "confidence": 0.75}
        rows.append(known | answer | {"label": "cat"})
    target = root / "reports" / "my photos"
    files = ImageFiles(root / "data")
    review_list.write(rows, files, target, name, root, "vit version 3", classes)
    return review_list.look(name, target, root)


def test_every_listed_image_becomes_a_task_and_a_row(tmp_path):
    images = {f"{number}.png": png(number) for number in (2, 1, 0)}
    look = write(tmp_path, "suspects", images, ["cat", "<dog>"])
    target = tmp_path / "reports" / "my photos"
    tasks = json.loads((tmp_path / look["tasks"]).read_text(encoding="utf-8"))
    assert len(tasks) == len([*(target / "suspects-images").iterdir()]) == 3
    place = tasks[1]["data"]["image"]
    assert place.startswith("/data/local-files/?d=reports/my%20photos/suspects-images/")
    assert (tmp_path / unquote(place.partition("?d=")[2])).read_bytes() == png(1)
    assert tasks[1]["data"]["path"] == HOSTILE
    [prediction] = tasks[1]["predictions"]
    assert (prediction["model_version"], prediction["score"]) == ("vit version 3", 0.75)
    assert prediction["result"] == [
        {
            "from_name": "corrected",
            "to_name": "image",
            "type": "choices",
            "value": {"choices": ["<dog> & co"]},
        }
    ]
    with (tmp_path / look["csv"]).open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [each["path"] for each in rows] == [HOSTILE] * 3
    assert {each["corrected"] for each in rows} == {""}
    interface = ElementTree.parse(target / "suspects-label-studio.xml")
    assert [choice.get("value") for choice in interface.iter("Choice")] == ["cat", "<dog>"]
    names = {node.get("name"): node.get("value") for node in interface.getroot()}
    assert names["image"] == "$image"
    assert interface.find("Choices").get("name") in rows[0]  # as the exports have the column


def test_what_a_person_has_filled_in_is_never_written_over_nor_removed(tmp_path):
    images = {f"{number}.png": png(number) for number in range(3)}
    look = write(tmp_path, "select-0123abcd", images)
    for file in look.values():
        (tmp_path / file).write_text("filled in")
    target = tmp_path / "reports" / "my photos"
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    write(tmp_path, "select-0123abcd", images)  # the same list once more
    write(tmp_path, "select-4567cdef", {"4.png": png(4)})  # and another one
    for path in target.rglob("*"):
        os.utime(path, (0, 0))
    (tmp_path / "params.yaml").write_text("workloads: {}\n")
    assert gc.collect(Project(tmp_path), keep=1, days=1) == []
    assert {path: path.read_bytes() for path in before} == before
    assert len([*(target / "select-4567cdef-images").iterdir()]) == 1


def test_a_page_shows_the_list_as_long_as_it_is_there(tmp_path):
    look = write(tmp_path, "suspects", {"1.png": png(1)})
    [row] = review_list.read(tmp_path, look["tasks"])
    assert (row["path"], row["look_alike"], row["image"].read_bytes()) == (HOSTILE, None, png(1))
    (tmp_path / look["tasks"]).unlink()
    assert review_list.read(tmp_path, look["tasks"]) == []


def test_an_image_whose_name_is_no_text_is_listed(tmp_path):
    look = write(tmp_path, "select", {os.fsdecode(b"\xff.png"): png(1)})
    assert "?.png" in (tmp_path / look["csv"]).read_text(encoding="utf-8")
    assert review_list.read(tmp_path, look["tasks"])[0]["file"] == "?.png"


SHADES = Image.effect_noise((16, 16), 50)


@pytest.mark.parametrize(
    ("data", "suffix"),
    [
        *(
            (encoded(SHADES, kind), f".{kind.lower()}")
            for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
        ),
        (encoded(SHADES, "JPEG2000"), ".jp2"),
        (encoded(SHADES.convert("RGB"), "AVIF"), ".avif"),
        (HEIC, ".heif"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_copy_is_named_by_what_the_image_is(tmp_path, data, suffix):
    write(tmp_path, "suspects", {"image": data})
    [copy] = (tmp_path / "reports" / "my photos" / "suspects-images").iterdir()
    assert (copy.suffix, copy.read_bytes()) == (suffix, data)
