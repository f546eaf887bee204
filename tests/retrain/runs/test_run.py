"""Runs of toy steps: what runs again and why, the tries of a step, and the trials of a search."""

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import sleep
from uuid import uuid4

import pytest
from prefect import flow, runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.concurrency import _leases

from retrain.errors import RejectedDataError, StepTimeoutError
from retrain.project import Project
from retrain.runs.run import ASKED, REFRESHED, Run
from retrain.runs.task import is_transient
from retrain.workload import Train
from tests.flows.conftest import until
from tests.retrain.runs.toy import ASKS, DATA, FIRST, SECOND, WORKLOAD


@pytest.fixture
def run_toy(prefect_session, tmp_path):
    """Runs steps, each on the output of the one before, as a flow of Prefect if they are tasks."""

    def call(data=DATA, refresh=False, steps=(FIRST, SECOND, ASKS), tasks=False, **sections):
        def toy():
            given = {"train": Train(epochs=10)} | sections
            workload = WORKLOAD.model_copy(update=given)
            run_id = str(runtime.flow_run.id or uuid4())
            run = Run("toy", workload, data, Project(tmp_path), run_id, refresh=refresh)

            def body(made):
                for step in steps:
                    made = step(made)

            run.follow(body)
            return run

        return (flow(toy) if tasks else toy)()

    return call


def reasons(run):
    """Why each step ran; None for one that was cached."""
    return [None if outcome.cached else outcome.why for outcome in run.outcomes.values()]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, [None, None]),
        ({"train": Train(epochs=20)}, ["train.epochs 10 -> 20", "first has a new output"]),
        ({"train": Train(epochs=11)}, ["train.epochs 10 -> 11", None]),  # read, but the same output
        ({"train": Train(epochs=10, lr=9.0)}, [None, None]),  # not read
        ({"data": replace(DATA, digest="def")}, ["the data changed", None]),
        ({"refresh": True}, [REFRESHED, REFRESHED]),
    ],
)
def test_a_step_runs_again_for_what_it_depends_on(run_toy, changed, why):
    before = run_toy()
    assert reasons(before) == ["first run", "first run", ASKED]
    after = run_toy(**changed)
    assert reasons(after) == [*why, ASKED]
    assert after.artifacts["asks"].facts == {"asked": True}
    assert reasons(run_toy(**changed | {"refresh": False}))[:2] == [None, None]
    if not changed:
        assert before.id[:8] in nth(after, 0).why


def test_each_step_is_a_line_of_the_log_and_a_task_of_prefect(run_toy, caplog):
    with caplog.at_level("INFO", logger="retrain"):
        run_toy(steps=(FIRST, SECOND), tasks=True)
        again = run_toy(tasks=True)
    lines = [record.getMessage().split()[:2] for record in caplog.records]
    for line in (["second", "ran"], ["second", "cached"], ["asks", "ran"]):
        assert line in lines
    states = {"first": "Cached", "second": "Cached", "asks": "Completed"}
    this_run = FlowRunFilter.model_validate({"id": {"any_": [again.id]}})
    with get_client(sync_client=True) as client:

        def are_known():
            tasks = client.read_task_runs(flow_run_filter=this_run)
            return {task.name: task.state.name for task in tasks} == states

        until(are_known)


def nth(run, number):
    return [*run.outcomes.values()][number]


def flip(folder):
    content = (folder / "out.txt").read_bytes()
    (folder / "out.txt").write_bytes(bytes([content[0] ^ 1]) + content[1:])


def test_a_flipped_byte_in_an_input_of_what_runs_is_found_and_repaired(run_toy, caplog):
    before = run_toy()
    flip(Path(nth(before, 0).path))
    before.store.discard("second", nth(before, 1).key)
    with caplog.at_level("INFO", logger="retrain"):
        after = run_toy()
    key = nth(before, 0).key[:8]
    assert f"first {key} is damaged (out.txt has changed)" in caplog.text
    assert reasons(after) == ["out.txt has changed", "its artifact is gone", ASKED]
    assert Path(nth(after, 1).path, "out.txt").read_text(encoding="utf-8") == "11"
    flip(Path(nth(after, 1).path))  # which a task gets
    assert reasons(run_toy()) == [None, "out.txt has changed", ASKED]


def test_what_a_killed_try_has_kept_of_a_damaged_input_is_not_gone_on_with(run_toy):
    before = run_toy(steps=[FIRST])
    step, tries = failing(KeyboardInterrupt, 1, SECOND)
    with pytest.raises(KeyboardInterrupt):
        run_toy(steps=[FIRST, step])
    flip(Path(nth(before, 0).path))
    assert reasons(run_toy(steps=[FIRST, step])) == ["out.txt has changed", "first run"]
    assert tries == [False, False]


def test_prefect_keeps_no_results_even_if_it_is_told_to(run_toy, tmp_path, monkeypatch):
    """They could be pickles, in a folder that others can write to."""
    monkeypatch.setenv("PREFECT_RESULTS_PERSIST_BY_DEFAULT", "true")
    monkeypatch.setenv("PREFECT_LOCAL_STORAGE_PATH", str(tmp_path / "prefect"))
    folder = Path(nth(run_toy(tasks=True), 0).path)
    assert {path.name for path in folder.iterdir()} == {"out.txt", "manifest.json"}
    assert not (tmp_path / "prefect").exists()


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr("retrain.runs.task.BACKOFF_SECONDS", 0.01)


def failing(error, times, step=FIRST):
    """A step that fails a few times, and what each of its tries has found in its scratch."""
    found = []

    def resumes(*arguments):
        checkpoint = arguments[-1].scratch / "checkpoint"
        found.append(checkpoint.exists())
        checkpoint.touch()
        if len(found) <= times:
            raise error
        return {}

    return replace(step, function=resumes), found


@pytest.mark.parametrize(
    ("error", "failures", "count", "refresh"),
    [
        (ConnectionError, 6, 7, True),  # another try goes on from the first, in a refresh too
        (ConnectionError, 9, 7, False),
        (PermissionError, 6, 3, False),  # of this machine
        (RejectedDataError, 1, 1, False),
    ],
)
def test_what_may_pass_is_tried_again_and_a_verdict_is_not(
    run_toy, error, failures, count, refresh
):
    step, tries = failing(error("away"), failures)
    with pytest.raises(error) if failures >= count else nullcontext():
        run_toy(steps=[step], refresh=refresh, tasks=True)
    assert tries == [False, *[True] * (count - 1)]


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


def test_a_step_with_other_parameters_explains_no_later_run(tmp_path):
    run, data = Run("toy", WORKLOAD, DATA, Project(tmp_path), "run-1"), DATA.as_input
    other = WORKLOAD.model_copy(update={"train": Train(epochs=7)})
    assert run.output(FIRST, data, workload=other) != run.output(FIRST, data)
    assert run.store.last_plan("toy", "first").exists()
    lone = Run("toy", WORKLOAD, DATA, Project(tmp_path / "lone"), "run-1")
    lone.output(FIRST, data, workload=other)
    assert not lone.store.last_plan("toy", "first").exists()


# A step that hangs is interrupted, or ended with its process.
BLOCK = """
import time
from asyncio import CancelledError
from contextlib import suppress
from retrain.runs import task

def hangs():
    time.sleep(600)

def is_interrupted():
    raise CancelledError

task.GRACE_SECONDS = 0.3
with suppress(CancelledError), task.ends_process(1e-6):
    {block}
{then}
"""


@pytest.mark.parametrize(
    ("block", "then", "code"),
    [
        ("hangs()", "", 1),
        ("is_interrupted()", "hangs()", 1),  # such as a thread that goes on
        ("pass", "time.sleep(0.6)", 0),
    ],
)
def test_a_process_ends_soon_after_the_limit_of_a_block_that_has_not_ended(block, then, code):
    program = [sys.executable, "-c", BLOCK.format(block=block, then=then)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    assert ("in hangs" in done.stderr) is (code == 1)


def hanging():
    """A step that waits for long, and its tries."""
    tries = []

    def waits(*arguments):
        tries.append(arguments)
        for _ in range(300):
            sleep(0.1)

    return replace(FIRST, function=waits), tries


def test_a_step_that_hangs_fails_at_its_limit_and_is_not_tried_again(run_toy):
    step, tries = hanging()
    with pytest.raises(StepTimeoutError, match=r"first did not end within 0\.0002 h"):
        run_toy(steps=[step], limits={"first": 0.0002}, tasks=True)
    assert len(tries) == 1


def test_a_run_that_lost_its_slot_is_not_told_as_a_limit(run_toy, monkeypatch):
    """Prefect ends it by the same error; its server knows nothing of this slot."""
    monkeypatch.setattr(_leases, "_RENEWAL_RETRY_MAX_DELAY", 0.1)

    @flow
    def small():
        with _leases.maintain_concurrency_lease(uuid4(), 300, raise_on_lease_renewal_failure=True):
            run_toy(steps=[hanging()[0]])

    with pytest.raises(ConnectionError, match=r"first was ended, .* has given the run's slot away"):
        small()
