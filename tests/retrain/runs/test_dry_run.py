"""What a run would do, from a real store, without Prefect."""

from dataclasses import replace
from pathlib import Path

import pytest

from retrain.execute import get_or_run
from retrain.outputs import plan
from retrain.project import Project
from retrain.runs.state import DryRun, RunState, StepHasToRunError
from retrain.store import RunContext, Store
from retrain.verify import Verifier
from retrain.workload import Train, Workload
from tests.retrain.runs import toy
from tests.retrain.runs.toy import DATA, FIRST, SECOND, WORKLOAD

ASKS = replace(toy.ASKS, dry_function=lambda *_: {"same": True})
ACTS = replace(ASKS, dry_function=lambda *_: None)
NAMES = ["first", "only with a champion", "second", "asks"]


def state(root: Path, workload: Workload = WORKLOAD) -> RunState:
    return RunState("toy", workload, DATA, Store(root), RunContext("run-1", Project(root)))


@pytest.fixture
def made(tmp_path):
    """A store with the output of the first step, as a run leaves it."""
    run, now = state(tmp_path), plan(FIRST, WORKLOAD, [DATA])
    get_or_run(run.store, FIRST, now, WORKLOAD, [DATA], run.context, Verifier(run.store).check)
    run.remember(now)
    return tmp_path


def look(root: Path, steps=(FIRST, SECOND, ASKS), workload=WORKLOAD, refresh=False):
    """What would be done with each step, and why."""
    dry_run, made = DryRun(state(root, workload)), DATA
    try:
        for step in steps:
            made = dry_run(step, made)
    except StepHasToRunError as error:
        dry_run.has_to_run, dry_run.reason = error.step, error.reason
    shown = dry_run.preview(NAMES, refresh=refresh)
    return {each["step"]: (each["would"], each["why"]) for each in shown}


def test_the_first_step_that_has_to_run_is_known_and_later_ones_depend_on_it(made):
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    shown = look(made)
    assert shown["first"][0] == "come from the cache"
    assert shown["first"][1].startswith("from run run-1 of ")
    assert shown["second"] == ("run", "first run")
    assert shown["asks"] == ("depend", "on what second gives")
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_a_changed_parameter_is_named(made):
    changed = WORKLOAD.model_copy(update={"train": Train(epochs=3)})
    shown = look(made, workload=changed)
    assert shown["first"] == ("run", "train.epochs 20 -> 3")
    assert set(shown) == set(NAMES)


def test_steps_that_ask_the_registry_change_nothing_or_are_the_first_to_run(made):
    asks, acts = (replace(step, inputs=("first",)) for step in (ASKS, ACTS))
    asked = "asked of the registry each time"
    assert look(made, steps=(FIRST, asks))["asks"] == ("change nothing", asked)
    shown = look(made, steps=(FIRST, acts))
    assert shown["asks"] == ("run", "it would change the registry")
    assert "only with a champion" not in look(made, steps=(FIRST, asks))


def test_with_refresh_the_first_step_runs_whatever_the_store_has(made):
    shown = look(made, refresh=True)
    assert shown["first"] == ("run", "nothing taken from the cache (refresh)")
    assert {would for would, _ in list(shown.values())[1:]} == {"depend"}
