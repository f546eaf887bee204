"""A step that hangs is interrupted, or ended with its process: real processes that hang."""

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from uuid import UUID

import psutil
import pytest

ROOT = Path(__file__).parents[2]
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


@pytest.mark.slow
def test_a_training_that_hangs_on_its_workers_is_ended_with_them(prefect_session, tmp_path):
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    done = subprocess.run(
        [sys.executable, "-c", "from tests.retrain.hanging import main; main()"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PREFECT_API_URL": PREFECT_API_URL.value()},
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,  # of ten minutes that the workers wait
    )
    message = "first did not end within 0.00833333 h (limits.first)."
    assert done.returncode == 1
    assert f"StepTimeoutError: {message}" in done.stderr
    assert (tmp_path / "tries").read_text() == "x"  # it is not tried again
    with get_client(sync_client=True) as client:
        ended = client.read_flow_run(UUID((tmp_path / "run").read_text())).state
    assert ended.type == "FAILED"
    assert message in ended.message
    worker, until = int((tmp_path / "worker").read_text()), monotonic() + 30
    while psutil.pid_exists(worker):  # Ray ends it when it notices
        assert monotonic() < until
        sleep(0.5)
