"""A step that hangs is interrupted, or ended with its process: real processes that hang."""

import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = (
    "import sys; from tests.retrain.hanging import main; main(sys.argv[1], float(sys.argv[2]))"
)


@pytest.fixture
def hang(tmp_path, prefect_session):
    """Runs the program; returns its exit code, its output, the seconds, and the run's state."""

    def run(how, then=0.0):
        began = monotonic()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, how, str(then)],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PREFECT_API_URL": api()},
            capture_output=True,
            text=True,
        )
        return done, monotonic() - began, state((tmp_path / "run").read_text())

    return run


def api():
    from prefect.settings import PREFECT_API_URL

    return str(PREFECT_API_URL.value())


def state(run):
    from uuid import UUID

    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return client.read_flow_run(UUID(run)).state


@pytest.mark.parametrize("how", ["sleeps", "waits_for_a_socket", "waits_for_a_thread"])
def test_what_can_be_interrupted_is_and_is_not_tried_again(hang, tmp_path, how):
    done, _, ended = hang(how)
    assert done.returncode == 1
    message = "first did not end within 0.000555556 h (limits.first)."
    assert f"StepTimeoutError: {message}" in done.stderr
    assert ended.type == "FAILED"
    assert message in ended.message
    assert (tmp_path / "tries").read_text() == "x"


@pytest.mark.slow
def test_a_training_that_hangs_on_its_workers_is_ended_with_them(hang, real_python, tmp_path):
    done, seconds, ended = hang("waits_for_workers")
    assert done.returncode == 1
    assert seconds < 90  # of ten minutes
    assert "first did not end within 0.00833333 h (limits.first)." in ended.message
    worker, until = int((tmp_path / "worker").read_text()), monotonic() + 30
    while psutil.pid_exists(worker):  # Ray ends it when it notices
        assert monotonic() < until
        sleep(0.5)


def test_what_cannot_be_interrupted_is_ended_with_its_process(hang):
    done, seconds, ended = hang("does_not_listen")
    assert done.returncode == 1
    assert seconds < 45  # of a minute that it would take
    assert ended.type == "CRASHED"
    assert ended.message == "first did not end within 0.000555556 h (limits.first)."
    assert "does_not_listen" in done.stderr  # where it hung


def test_a_step_that_ends_in_time_leaves_its_process_alone(hang):
    done, _, ended = hang("ends_in_time", then=7.0)
    assert done.returncode == 0, done.stderr
    assert ended.type == "COMPLETED"
