"""The tries of a step, what a try leaves for the next one, and the trials of a search."""

from dataclasses import replace

import pytest
from prefect import flow, runtime

from retrain.caching import is_transient
from retrain.errors import PrunedError, RejectedDataError
from retrain.project import Project
from retrain.runs.run import Run
from retrain.runs.state import RunState
from retrain.step import TrialContext
from retrain.store import RunContext, Store
from retrain.workload import Train
from tests.retrain.runs.toy import DATA, FIRST, WORKLOAD, outcomes


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr("retrain.caching.BACKOFF_SECONDS", 0.01)


def failing(error, times):
    """A step that fails a few times, and what each of its tries has found in its scratch."""
    found = []

    def resumes(definition, data, workspace):
        checkpoint = workspace.scratch / "checkpoint"
        found.append(checkpoint.exists())
        checkpoint.touch()
        if len(found) <= times:
            raise error
        return {}

    return replace(FIRST, function=resumes), found


def test_what_may_pass_is_tried_again_and_a_verdict_is_not(run_toy):
    step, tries = failing(ConnectionError("away"), 2)
    run_toy(steps=[step], refresh=True)
    assert tries == [False, True, True]  # another try goes on from the first, in a refresh too
    step, tries = failing(RejectedDataError("bad"), 1)
    with pytest.raises(RejectedDataError):
        run_toy(epochs=30, steps=[step])
    assert tries == [False]


def test_the_next_run_goes_on_and_refresh_starts_from_nothing(run_toy):
    step, tries = failing(ValueError("stopped"), 2)
    for refresh in (False, False):
        with pytest.raises(ValueError, match="stopped"):
            run_toy(steps=[step], refresh=refresh)
    run_toy(steps=[step], refresh=True)
    assert tries == [False, True, False]


@pytest.mark.parametrize(
    ("error", "cause", "may_pass"),
    [
        (RuntimeError("x"), TimeoutError("y"), True),
        (OSError("x"), ValueError("y"), False),
        (RuntimeError("shapes"), None, False),
    ],
)
def test_the_cause_of_an_error_decides_whether_it_may_pass(error, cause, may_pass):
    error.__cause__ = cause
    assert is_transient(error) == may_pass


def trains(definition, data, workspace):
    (workspace.scratch / "checkpoint").touch()
    assert workspace.trial
    if workspace.trial.bounds:
        raise PrunedError([{"epoch": 1}])
    (workspace.folder / "out.txt").write_text(str(definition.epochs))
    return {}


def test_a_trial_runs_beside_the_steps_and_a_pruned_one_is_no_failure(
    prefect_session, tmp_path, task_states
):
    step = replace(FIRST, function=trains)

    @flow
    def search():
        context = RunContext(str(runtime.flow_run.id), Project(tmp_path))
        run = Run(RunState("search", WORKLOAD, DATA, Store(tmp_path / "store"), context), True)
        with run.state.store.holding(context.run):
            other = WORKLOAD.model_copy(update={"train": Train(epochs=7)})
            made, cached = run.run_trial(step, other, TrialContext("trial 1", "parent", {}), DATA)
            assert ((made.folder / "out.txt").read_text(), cached) == ("7", False)
            with pytest.raises(PrunedError) as error:
                run.run_trial(step, WORKLOAD, TrialContext("trial 2", "parent", {1: 0.5}), DATA)
            assert error.value.history == [{"epoch": 1}]
            assert run.state.outcomes == []
            assert run(step, DATA, workload=other) == made
        return run

    run = search()
    assert [(name, cached) for name, cached, _ in outcomes(run)] == [("first", True)]
    assert len(list(run.state.store.entries())) == 1
    assert len(list((tmp_path / "store").glob("scratch/*/*/checkpoint"))) == 1
    assert not run.state.last_plan("first").exists()  # a trial explains no later run
    assert task_states(run, 3) == {
        "first, trial 1": "Completed", "first, trial 2": "Pruned", "first": "Cached",
    }  # fmt: skip
