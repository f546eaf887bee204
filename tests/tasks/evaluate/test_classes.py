"""The classes of the data against those of the champion."""

import pytest

from retrain.errors import RejectedDataError
from retrain.workload import Gate
from tasks.evaluate.champion import refuse_missing


def decide(theirs, ours, may_drop=()):
    """Compares the classes of a champion and of the data, both with their images."""
    return refuse_missing(Gate(may_drop=tuple(may_drop)), "toy version 3", theirs, ours)


BOTH = {"ant": 9, "bee": 9}


@pytest.mark.parametrize(
    ("theirs", "ours", "may_drop", "found"),
    [
        (BOTH, {"bee": 30, "ant": 20}, (), []),
        ({"ant": 9}, BOTH, (), []),
        (BOTH, {"bee": 9}, ["ant", "never seen"], ["ant"]),
    ],
)
def test_data_may_have_further_classes_and_lack_those_that_may_go(theirs, ours, may_drop, found):
    assert decide(theirs, ours, may_drop) == found


def test_a_class_that_is_gone_is_refused_with_what_was_and_what_is():
    with pytest.raises(RejectedDataError) as raised:
        theirs, ours = {"ant": 1240, "bee": 9}, {"bee": 9, "wasp": 1}
        decide(theirs, ours)
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
def test_what_is_gone_is_named_briefly(theirs, ours, may_drop, said):
    with pytest.raises(RejectedDataError) as raised:
        decide(theirs, ours, may_drop)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 1500
