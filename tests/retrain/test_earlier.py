"""What a step is given of its earlier output: real stores, links and flipped bytes."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from retrain import outputs
from retrain.execute import get_or_run
from retrain.outputs import plan
from retrain.step import DataVersion, Step
from retrain.store import write_json
from retrain.verify import Verifier, verify
from retrain.workload import Train
from tests.retrain.test_gc import age
from tests.retrain.test_store import WORKLOAD, with_lr
from tests.retrain.test_verify import flip

given = []


def write_two(definition: Train, version: DataVersion, workspace) -> dict:
    given.append(workspace.earlier)
    (workspace.folder / "same.txt").write_text(f"{definition.lr}")
    (workspace.folder / version.digest).write_text(version.digest)
    return {}


STEP = Step("toy", write_two, reads=("train.lr",), inputs=("data",), by_difference=True)


def week(store, context, number, workload=WORKLOAD, step=STEP, **options):
    inputs = [DataVersion(f"week-{number}", tracked=True)]
    now = plan(step, workload, inputs)
    with store.lock("toy", now.key):
        call = (store, step, now, workload, inputs, context, Verifier(store).check)
        made, _ = get_or_run(*call, **options)
    memory = store.last_plan(workload.name, "toy")
    memory.parent.mkdir(parents=True, exist_ok=True)
    write_json(memory, asdict(now))
    return made


def is_linked(one, other):
    return (one.folder / "same.txt").samefile(other.folder / "same.txt")


def test_a_step_is_given_its_earlier_output_and_the_same_files_are_links(store, context):
    first, second = week(store, context, 1), week(store, context, 2)
    assert given[-2:] == [None, first.folder]
    assert is_linked(first, second)
    assert not (second.folder / "week-1").exists()
    store.discard("toy", first.key)
    assert verify(store, lambda *_: None) == []
    assert (second.folder / "same.txt").read_text() == "0.001"


@pytest.mark.parametrize(
    "options",
    [{"workload": with_lr(0.5)}, {"step": replace(STEP, by_difference=False)}, {"refresh": True}],
)
def test_with_another_parameter_or_anew_a_step_is_given_nothing(store, context, options):
    first, second = week(store, context, 1), week(store, context, 2, **options)
    assert given[-1] is None
    assert not is_linked(first, second)


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


def test_a_link_to_a_file_of_the_earlier_output_is_not_read_again(store, context, monkeypatch):
    first, read = week(store, context, 1), []

    def link(definition: Train, version: DataVersion, workspace) -> dict:
        (workspace.folder / "linked").hardlink_to(workspace.earlier / "same.txt")
        (workspace.folder / "new").write_text("new")
        return {}

    measured = outputs.sha256_of
    monkeypatch.setattr(
        outputs, "sha256_of", lambda path, *show: read.append(Path(path)) or measured(path)
    )
    second = week(store, context, 2, step=replace(STEP, function=link))
    assert [path.name for path in read] == ["new"]
    assert verify(store, lambda *_: None) == []
    assert (second.folder / "linked").samefile(first.folder / "same.txt")
