"""What people label with: tasks of Label Studio, a CSV file, and copies of the images."""

import csv
import json
from hashlib import sha256
from urllib.parse import unquote
from xml.etree import ElementTree

from tasks.data import label_tasks, listed
from tests.tasks.toy_data import png

HOSTILE = 'a"><script>, \n=1+1.png'


def row(number: int, **more) -> dict:
    data = png(number)
    empty = dict.fromkeys(listed.schema().names)
    known = {"path": HOSTILE, "file": HOSTILE, "row": 0, "sha256": sha256(data).hexdigest()}
    answer = {"why": listed.WRONG_LABEL, "proposed": "<dog> & co", "confidence": 0.75}
    return empty | known | answer | {"label": "cat", "image": data} | more


def test_every_listed_image_becomes_a_task_and_a_row(tmp_path):
    listed.write(tmp_path, (row(number) for number in range(3)))
    target = tmp_path / "reports" / "my photos"
    for _ in range(2):  # the second time in place of the first
        label_tasks.write(tmp_path, target, "suspects", tmp_path, "vit version 3", ["cat", "<dog>"])
    look = label_tasks.look("suspects", target, tmp_path)
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
