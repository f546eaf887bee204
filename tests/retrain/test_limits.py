"""A step that hangs is interrupted, or ended with its process: real processes that hang."""

import subprocess
import sys
from time import sleep
from uuid import uuid4

import pytest
from prefect import flow
from prefect.concurrency import _leases

from retrain.errors import StepTimeoutError
from retrain.project import Project
from retrain.runs.run import Run
from retrain.step import DataVersion, Step
from retrain.workload import Workload


def workload(**sections):
    return Workload(name="toy", data={"path": "x"}, model={"family": "vit"}, **sections)


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


tries = []


def waits(version, workspace):
    tries.append(version)
    for _ in range(300):
        sleep(0.1)


def run_step(project, **sections):
    """Runs a step that waits for long."""
    version = DataVersion("abc", tracked=True)
    run = Run("toy", workload(**sections), version, Project(project), "run")
    run.output(Step("first", waits, inputs=("data",)), version.as_input)


def test_a_step_that_hangs_fails_at_its_limit_and_is_not_tried_again(prefect_session, tmp_path):
    tries.clear()
    state = flow(run_step)(tmp_path, limits={"first": 0.0002}, return_state=True)
    assert state.type == "FAILED"
    with pytest.raises(StepTimeoutError, match=r"first did not end within 0\.0002 h"):
        state.result()
    assert len(tries) == 1


def test_a_run_that_lost_its_slot_is_not_told_as_a_limit(prefect_session, tmp_path, monkeypatch):
    """Prefect ends it by the same error; its server knows nothing of this slot."""
    monkeypatch.setattr(_leases, "_RENEWAL_RETRY_MAX_DELAY", 0.1)

    @flow
    def small():
        with _leases.maintain_concurrency_lease(uuid4(), 300, raise_on_lease_renewal_failure=True):
            run_step(tmp_path)

    with pytest.raises(ConnectionError, match=r"first was ended, .* has given the run's slot away"):
        small()
