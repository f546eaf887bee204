"""What a step is given of its earlier output: real stores and flipped bytes."""

from dataclasses import asdict

import pytest

from retrain.disk import write_json
from retrain.outputs import plan
from retrain.step import DataVersion, Step
from retrain.workload import Train
from tests import running
from tests.retrain.test_gc import age
from tests.retrain.test_store import WORKLOAD, with_lr
from tests.retrain.test_verify import flip

given = []


def write_two(definition: Train, version: DataVersion, workspace) -> dict:
    given.append(workspace.earlier())
    (workspace.folder / "same.txt").write_text(f"{definition.lr}")
    (workspace.folder / version.digest).write_text(version.digest)
    return {}


STEP = Step("toy", write_two, reads=("train.lr",), inputs=("data",))


def week(store, context, number, workload=WORKLOAD, step=STEP, **options):
    inputs = [DataVersion(f"week-{number}", tracked=True)]
    now = plan(step, workload, inputs)
    made, _ = running.make(store, step, workload, inputs, context, **options)
    memory = store.last_plan(workload.name, "toy")
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_json(memory, asdict(now))
    return made


def test_a_step_is_given_its_earlier_output(store, context):
    first, _ = week(store, context, 1), week(store, context, 2)
    assert given[-2:] == [None, first.folder]


@pytest.mark.parametrize("options", [{"workload": with_lr(0.5)}, {"refresh": True}])
def test_with_another_parameter_or_anew_a_step_is_given_nothing(store, context, options):
    week(store, context, 1)
    week(store, context, 2, **options)
    assert given[-1] is None


def test_an_earlier_output_that_has_changed_is_not_used(store, context):
    first = week(store, context, 1)
    flip(first.folder / "same.txt")
    second = week(store, context, 2)
    assert given[-1] is None
    assert not first.folder.exists()
    assert (second.folder / "same.txt").read_text() == "0.001"


def test_an_earlier_output_that_is_being_used_is_not_cleaned_up(store, context):
    first = week(store, context, 1)
    age(first.folder)
    before = store.last_used("toy", first.key)
    week(store, context, 2)
    assert store.last_used("toy", first.key) > before + 3600
