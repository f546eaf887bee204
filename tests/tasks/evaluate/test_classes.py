"""The classes of the data against those of the champion's package, on its files."""

import json
from types import SimpleNamespace

import pytest

from retrain.errors import RejectedDataError
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.evaluate.champion import compare


def decide(tmp_path, theirs, ours, may_drop=()):
    """Compares the classes of a champion and of the data, both with their images."""
    artifacts = tmp_path / "package" / "artifacts"
    (artifacts / "model").mkdir(parents=True)
    (artifacts / "model" / "labels.json").write_text(json.dumps(list(theirs)))
    (artifacts / "classes.json").write_text(json.dumps(theirs))
    data = Artifact("validate", "k", "d", tmp_path, {"classes": ours})
    version = SimpleNamespace(title="toy version 3")
    champion = SimpleNamespace(package=tmp_path / "package", version=version)
    return compare(Gate(may_drop=tuple(may_drop)), champion, data, None)  # type: ignore[arg-type]


BOTH = {"ant": 9, "bee": 9}


@pytest.mark.parametrize(
    ("theirs", "ours", "may_drop", "found"),
    [
        (BOTH, {"bee": 30, "ant": 20}, (), {"dropped": [], "added": []}),
        ({"ant": 9}, BOTH, (), {"dropped": [], "added": ["bee"]}),
        (BOTH, {"bee": 9}, ["ant", "never seen"], {"dropped": ["ant"], "added": []}),
    ],
)
def test_data_may_have_further_classes_and_lack_those_that_may_go(
    tmp_path, theirs, ours, may_drop, found
):
    assert decide(tmp_path, theirs, ours, may_drop) == found


def test_a_class_that_is_gone_is_refused_with_what_was_and_what_is(tmp_path):
    with pytest.raises(RejectedDataError) as raised:
        theirs, ours = {"ant": 1240, "bee": 9}, {"bee": 9, "wasp": 1}
        decide(tmp_path, theirs, ours)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("The data lacks 1 of the 2 classes of toy version 3, the champion")
    assert lines[1:4] == [
        "- missing, with the images then: ant (1,240)",
        "- the champion's classes: ant, bee",
        "- the data's classes: bee, wasp",
    ]
    for way in ("gate.may_drop", "params.yaml", "--as NAME"):
        assert way in lines[4]


@pytest.mark.parametrize(
    ("theirs", "ours", "may_drop", "said"),
    [
        (BOTH, {"cat": 9}, ["ant"], "then: bee (9)\n"),
        ({f"n{number:08}": 9 for number in range(1000)}, {"ant": 9}, [], "and 990 more"),
    ],
)
def test_what_is_gone_is_named_briefly(tmp_path, theirs, ours, may_drop, said):
    with pytest.raises(RejectedDataError) as raised:
        decide(tmp_path, theirs, ours, may_drop)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 1500
