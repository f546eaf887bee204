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


def test_prefect_finds_its_own_flow_in_the_file_of_a_deployment(tmp_path):
    file = tmp_path / "greet.py"
    file.write_text(SOURCE)
    found = load_flow_from_entrypoint(f"{file}:greet")
    assert isinstance(found, Flow)
    assert (found.name, found.description) == ("greet", "Greets a workload.")
    assert found.parameters.required == ["workload"]


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


CACHED = ("come from the cache", "from run run-1 of ")
EPOCHS = WORKLOAD.model_copy(update={"train": Train(epochs=3)})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [CACHED, None, ("run", "first run"), ("depend", "on what second gives")]),
        ({"workload": EPOCHS}, [("run", "train.epochs 20 -> 3"), *[("depend", "on what")] * 3]),
        ({"steps": (FIRST, ASKS)}, [CACHED, None, None, ("change nothing", "asked of the reg")]),
        (
            {"steps": (FIRST, ACTS, SECOND)},
            [CACHED, None, None, ("run", "it would change the registry")],
        ),
        ({"refresh": True}, [("run", "nothing taken from"), *[("depend", "on what first")] * 3]),
    ],
)
def test_the_first_step_that_has_to_run_is_known_and_later_ones_depend_on_it(
    made, options, expected
):
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    shown = dry_run(made, **options)
    for name, each in zip(NAMES, expected, strict=True):
        would, why = shown.get(name, (None, ""))
        assert would == (each and each[0])
        assert why.startswith(each[1] if each else "")
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before
