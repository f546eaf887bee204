"""A step that hangs is interrupted, or ended with its process: real processes that hang."""

import os
import subprocess
import sys
from pathlib import Path
from time import sleep
from uuid import UUID, uuid4

import pytest

from retrain.project import Project
from retrain.runs.run import Run
from retrain.step import DataVersion, Step
from retrain.workload import Workload

ROOT = Path(__file__).parents[2]


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

task.GRACE_SECONDS = 1.0
with suppress(CancelledError), task.ends_process(1e-6):
    {block}
{then}
"""


@pytest.mark.parametrize(
    ("block", "then", "code"),
    [
        ("hangs()", "", 1),
        ("is_interrupted()", "hangs()", 1),  # such as a thread that goes on
        ("pass", "time.sleep(2)", 0),
    ],
)
def test_a_process_ends_soon_after_the_limit_of_a_block_that_has_not_ended(block, then, code):
    program = [sys.executable, "-c", BLOCK.format(block=block, then=then)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    assert ("in hangs" in done.stderr) is (code == 1)


def test_a_run_that_lost_its_slot_is_not_told_as_a_limit(prefect_session, tmp_path, monkeypatch):
    """Prefect ends it by the same error; its server knows nothing of this slot."""
    from prefect import flow
    from prefect.concurrency import _leases

    monkeypatch.setattr(_leases, "_RENEWAL_RETRY_MAX_DELAY", 0.1)

    @flow
    def small():
        with _leases.maintain_concurrency_lease(uuid4(), 300, raise_on_lease_renewal_failure=True):
            Run("toy", workload(), version, Project(tmp_path), "run").output(step, version.as_input)

    def waits(version, workspace):
        for _ in range(300):
            sleep(0.1)

    step, version = Step("first", waits, inputs=("data",)), DataVersion("abc", tracked=True)
    with pytest.raises(ConnectionError, match=r"first was ended, .* has given the run's slot away"):
        small()


def hangs(version, workspace):
    print("tried", flush=True)
    sleep(600)


HANGS = """
from pathlib import Path
from prefect import flow, runtime
from retrain.project import Project
from retrain.runs.run import Run
from retrain.step import DataVersion, Step
from tests.retrain.test_limits import hangs, workload

@flow
def toy():
    run, version = str(runtime.flow_run.id), DataVersion("abc", tracked=True)
    print(run, flush=True)
    given = workload(limits={"first": 0.0005})
    step = Step("first", hangs, inputs=("data",))
    Run("toy", given, version, Project(Path.cwd()), run).output(step, version.as_input)

toy()
"""


def test_a_step_that_hangs_fails_at_its_limit_and_is_not_tried_again(prefect_session, tmp_path):
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PREFECT_API_URL": PREFECT_API_URL.value()},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    message = "first did not end within 0.0005 h (limits.first)."
    assert f"StepTimeoutError: {message}" in done.stderr
    run, *tries = done.stdout.split()
    assert tries == ["tried"]
    with get_client(sync_client=True) as client:
        ended = client.read_flow_run(UUID(run)).state
    assert ended.type == "FAILED"
    assert message in ended.message
