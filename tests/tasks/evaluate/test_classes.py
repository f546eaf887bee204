"""The classes of the data against those of the champion's package, on its files."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.errors import RejectedDataError
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data import image_table
from tasks.evaluate.classes import compare


@dataclass
class Version:
    name: str = "toy"
    version: int = 3


@dataclass
class Champion:
    """A registered version whose package is in a folder."""

    package: Path
    version: Version


@pytest.fixture
def decide(tmp_path):
    """Compares the classes of a champion and of the data, both with their images."""

    def call(theirs, ours, may_drop=(), set_aside=(), recorded=True):
        artifacts = tmp_path / "package" / "artifacts"
        (artifacts / "model").mkdir(parents=True)
        (artifacts / "model" / "labels.json").write_text(json.dumps(list(theirs)))
        if recorded:
            (artifacts / "classes.json").write_text(json.dumps(theirs))
        pq.write_table(pa.table({"label": list(set_aside)}), tmp_path / image_table.SET_ASIDE)
        data = Artifact("validate", "k", "d", tmp_path, {"classes": ours})
        champion = Champion(tmp_path / "package", Version())
        return compare(Gate(may_drop=tuple(may_drop)), champion, data, None)  # type: ignore[arg-type]

    return call


def test_the_same_classes_with_other_images_are_one_task(decide):
    assert decide({"ant": 9, "bee": 9}, {"bee": 30, "ant": 20}) == {"dropped": [], "added": []}


def test_the_data_may_have_further_classes(decide):
    assert decide({"ant": 9}, {"ant": 9, "bee": 9})["added"] == ["bee"]


def test_a_class_that_is_gone_is_refused_with_what_was_and_what_is(decide):
    with pytest.raises(RejectedDataError) as raised:
        decide({"ant": 1240, "bee": 9}, {"bee": 9, "wasp": 1}, set_aside=["ant", "ant", "bee"])
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("The data lacks 1 of the 2 classes of toy version 3, the champion")
    assert lines[1:4] == [
        "- missing: ant (1,240 images then, 0 now, 2 set aside)",
        "- the champion's classes: ant, bee",
        "- the data's classes: bee, wasp",
    ]
    for way in ("gate.may_drop", "params.yaml", "--as NAME"):
        assert way in lines[4]


def test_a_class_may_go_if_the_gate_says_so(decide):
    dropped = decide({"ant": 9, "bee": 9}, {"bee": 9}, may_drop=["ant", "never seen"])
    assert dropped == {"dropped": ["ant"], "added": []}


def test_a_class_that_may_go_does_not_let_another_go(decide):
    with pytest.raises(RejectedDataError, match=r"missing: bee \(9 images then"):
        decide({"ant": 9, "bee": 9}, {"cat": 9}, may_drop=["ant"])


def test_a_champion_of_before_images_were_counted_is_compared_by_its_labels(decide):
    with pytest.raises(RejectedDataError, match=re.escape("missing: ant (0 now)")):
        decide({"ant": 9, "bee": 9}, {"bee": 9}, recorded=False)


def test_the_lists_of_a_thousand_classes_are_shortened(decide):
    classes = {f"n{number:08}": number for number in range(1000)}
    with pytest.raises(RejectedDataError) as raised:
        decide(classes, {"ant": 9})
    assert "and 990 more" in str(raised.value)
    assert len(str(raised.value)) < 1500
