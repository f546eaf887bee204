"""The decorator of flows; what a run would do, from a real store, without Prefect."""

from pathlib import Path

import pytest
from prefect import Flow
from prefect.flows import load_flow_from_entrypoint

from retrain.flow import may_change, preview
from retrain.project import Project
from retrain.runs.run import DryRun, Run, current_run
from retrain.step import Task
from retrain.workload import Train
from tests.retrain.runs.toy import ASKS, DATA, FIRST, SECOND, WORKLOAD

SOURCE = '''
from retrain.flow import flow

@flow
def greet(workload: str, times: int = 1) -> str:
    """Greets a workload.

    More.
    """
    return workload * times
'''


@pytest.fixture
def prefect_flow(tmp_path):
    """What Prefect finds at the entrypoint of a deployment."""
    file = tmp_path / "greet.py"
    file.write_text(SOURCE)
    return load_flow_from_entrypoint(f"{file}:greet")


def test_prefect_finds_its_own_flow_in_the_file(prefect_flow):
    assert isinstance(prefect_flow, Flow)
    assert (prefect_flow.name, prefect_flow.description) == ("greet", "Greets a workload.")
    assert prefect_flow.parameters.required == ["workload"]


@pytest.mark.parametrize(
    ("promote", "overrides", "revision", "as_name", "may"),
    [
        (None, None, None, None, None),
        (None, {"train.epochs": 500}, None, None, False),  # it only tries, on the server too
        (None, None, "HEAD~1", None, False),
        (None, {"train.epochs": 500}, None, "longer", None),  # it has a champion of its own
        (True, {"train.epochs": 500}, None, None, True),
        (False, None, None, None, False),
    ],
)
def test_a_run_that_only_tries_something_changes_nothing_that_is_served(
    promote, overrides, revision, as_name, may
):
    assert may_change(promote, overrides, revision, as_name) is may


def acts(above):
    current_run().must_run("asks", "it would change the registry")


ACTS = Task("asks", acts)
NAMES = ["first", "only with a champion", "second", "asks"]


@pytest.fixture
def made(tmp_path):
    """A store with the output of the first step, as a run leaves it."""
    Run("toy", WORKLOAD, DATA, Project(tmp_path), "run-1").output(FIRST, DATA.as_input)
    return tmp_path


def dry_run(root: Path, steps=(FIRST, SECOND, ASKS), workload=WORKLOAD, refresh=False):
    """What would be done with each step, and why."""
    dry_run = DryRun("toy", workload, DATA, Project(root), "")

    def body(made):
        for step in steps:
            made = step(made)

    dry_run.follow(body)
    shown = preview(dry_run, NAMES, refresh=refresh)
    return {each["step"]: (each["would"], each["why"]) for each in shown}


def test_the_first_step_that_has_to_run_is_known_and_later_ones_depend_on_it(made):
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    shown = dry_run(made)
    assert shown["first"][0] == "come from the cache"
    assert shown["first"][1].startswith("from run run-1 of ")
    assert shown["second"] == ("run", "first run")
    assert shown["asks"] == ("depend", "on what second gives")
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_a_changed_parameter_is_named(made):
    changed = WORKLOAD.model_copy(update={"train": Train(epochs=3)})
    shown = dry_run(made, workload=changed)
    assert shown["first"] == ("run", "train.epochs 20 -> 3")
    assert set(shown) == set(NAMES)


def test_steps_that_ask_the_registry_change_nothing_or_are_the_first_to_run(made):
    asked = "asked of the registry each time"
    assert dry_run(made, steps=(FIRST, ASKS))["asks"] == ("change nothing", asked)
    shown = dry_run(made, steps=(FIRST, ACTS))
    assert shown["asks"] == ("run", "it would change the registry")
    assert "only with a champion" not in dry_run(made, steps=(FIRST, ASKS))


def test_with_refresh_the_first_step_runs_whatever_the_store_has(made):
    shown = dry_run(made, refresh=True)
    assert shown["first"] == ("run", "nothing taken from the cache (refresh)")
    assert {would for would, _ in list(shown.values())[1:]} == {"depend"}
