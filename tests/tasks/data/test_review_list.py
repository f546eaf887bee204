"""What people label with: tasks of Label Studio, a CSV file, and copies of the images."""

import csv
import json
import os
from hashlib import sha256
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from PIL import Image

from retrain import gc
from retrain.project import Project
from tasks.data import review_list
from tests.tasks.toy_data import HEIC, encoded, png

HOSTILE = 'a"><script>, \n=1+1.png'


def row(number: int, **more) -> dict:
    data = png(number)
    empty = dict.fromkeys(review_list.schema().names)
    known = {"path": HOSTILE, "file": HOSTILE, "row": 0, "sha256": sha256(data).hexdigest()}
    answer = {"why": review_list.WRONG_LABEL, "proposed": "<dog> & co", "confidence": 0.75}
    return empty | known | answer | {"label": "cat", "image": data} | more


def test_every_listed_image_becomes_a_task_and_a_row(tmp_path):
    review_list.write(tmp_path, (row(number) for number in range(3)))
    target = tmp_path / "reports" / "my photos"
    classes = ["cat", "<dog>"]
    review_list.write_for_people(tmp_path, target, "suspects", tmp_path, "vit version 3", classes)
    look = review_list.look("suspects", target, tmp_path)
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
    review_list.write(tmp_path, (row(number) for number in range(3)))
    target = tmp_path / "reports" / "vit"

    def write(name: str) -> None:
        review_list.write_for_people(tmp_path, target, name, tmp_path, "vit version 3", ["cat"])

    write("select-0123abcd")
    for file in (target / "select-0123abcd.csv", target / "select-0123abcd.json"):
        file.write_text("filled in")
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    write("select-0123abcd")  # the same list once more
    review_list.write(tmp_path, [row(4)])
    write("select-4567cdef")  # and another one
    for path in target.rglob("*"):
        os.utime(path, (0, 0))
    (tmp_path / "params.yaml").write_text("workloads: {}\n")
    assert gc.collect(Project(tmp_path), keep=1, days=1) == []
    assert {path: path.read_bytes() for path in before} == before
    assert len([*(target / "select-4567cdef-images").iterdir()]) == 1


SHADES = Image.effect_noise((16, 16), 50)


@pytest.mark.parametrize(
    ("data", "suffix"),
    [
        *((encoded(SHADES, kind), f".{kind.lower()}") for kind in ("PNG", "GIF", "BMP", "WEBP")),
        (encoded(SHADES, "JPEG"), ".jpg"),
        (encoded(SHADES, "JPEG2000"), ".jp2"),
        (encoded(SHADES, "TIFF"), ".tif"),
        (encoded(SHADES, "TIFF", big_tiff=True), ".tif"),
        (encoded(SHADES, "PPM"), ".pgm"),
        (encoded(SHADES.convert("RGB"), "PPM"), ".ppm"),
        (encoded(SHADES.convert("RGB"), "AVIF"), ".avif"),
        (HEIC, ".heic"),
        (b"no image", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_copy_is_named_by_what_the_image_is(tmp_path, data, suffix):
    review_list.write(tmp_path, [row(0) | {"image": data}])
    review_list.write_for_people(tmp_path, tmp_path, "suspects", tmp_path, "vit version 3", [])
    [copy] = (tmp_path / "suspects-images").iterdir()
    assert (copy.suffix, copy.read_bytes()) == (suffix, data)
