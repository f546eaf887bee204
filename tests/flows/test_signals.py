"""A run that is ended from outside: real processes, in a clone with a server inside each run."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from time import monotonic

import psutil
import pytest

from tests import templates
from tests.flows.conftest import RETRAIN, make_clone, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = make_clone(tmp_path_factory.mktemp("ended"), "")
    templates.place_prefect_database(made.root)
    templates.place_mlflow_database(made.root)
    return made


TRAIN = ("train", "vit", "--set", "train.epochs=100000", "--set", "scale.checkpoint_seconds=0.1")


@pytest.fixture
def run(clone, tmp_path):
    """Starts a run in a session of its own; gives it back when it trains, with its processes."""
    started = []
    output = tmp_path / "output"

    def start():
        for old in scratch(clone):
            shutil.rmtree(old.parent)
        process = clone.start(*TRAIN, output=output)
        started.append(process)
        until(lambda: scratch(clone) or process.poll() is not None, 180)
        assert process.poll() is None, output.read_text()
        others = psutil.Process(process.pid).children(recursive=True)
        assert any("uvicorn" in other.cmdline() for other in others)
        return process, others, output

    yield start
    for process in started:
        process.kill()
        process.wait()


def scratch(clone):
    """The reports of trainings that are not over."""
    return list((clone.root / ".retrain" / "store" / "scratch" / "train").glob("*/reports.json"))


def ask(database, query):
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query).fetchone()[0]


def state(clone):
    """Of the last flow run, as Prefect has it."""
    last = "select state_type from flow_run order by created desc limit 1"
    return ask(clone.root / ".retrain" / "prefect" / "prefect.db", last)


def tracked(clone):
    """The status of the last run in MLflow."""
    last = "select status from runs order by start_time desc limit 1"
    return ask(clone.root / "mlflow.db", last)


def gone(others, seconds):
    _, alive = psutil.wait_procs(others, timeout=seconds)
    return not alive


def test_sigterm_ends_a_run_as_ctrl_c_does_and_people_are_notified(run, clone, webhook):
    process, others, output = run()
    began = monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143, output.read_text()
    assert output.read_text().endswith("\nretrain: Terminated.\n")
    assert monotonic() - began < 20  # 3 s on an idle machine
    assert gone(others, 5)
    assert state(clone) == "CRASHED"
    assert tracked(clone) == "FAILED"
    [received] = webhook
    assert received["text"].startswith(
        "vit: the run crashed: Execution was aborted by a termination signal."
    )


def test_ctrl_c_ends_a_run_after_its_step_and_says_how_to_go_on(run, clone):
    process, others, output = run()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    began = monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
    assert process.wait(timeout=60) == 130, output.read_text()
    assert monotonic() - began < 20
    assert gone(others, 5)
    assert state(clone) == "CRASHED"
    [reports] = scratch(clone)
    step = json.loads(reports.read_text())["step"]
    said = f"train ended at step {step}. The same command goes on from there."
    assert said in output.read_text()


# A run that is killed when Prefect has made its record, before it holds the store.
EARLY = """
import os, signal
import retrain.flow
from flows.validate import validate
retrain.flow.load_workload = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
validate("vit")
"""


def test_a_run_that_was_killed_before_it_held_anything_is_ended_by_the_next_one(clone):
    clone.run(sys.executable, "-c", EARLY, code=-signal.SIGKILL)
    assert state(clone) == "RUNNING"
    clone.run(*RETRAIN, "validate", "vit", "--run")
    database = clone.root / ".retrain" / "prefect" / "prefect.db"
    live = "select count(*) from flow_run where state_type in ('PENDING', 'RUNNING')"
    assert (state(clone), ask(database, live)) == ("COMPLETED", 0)


def test_a_killed_run_leaves_no_server_behind(run):
    process, others, _ = run()
    process.kill()
    process.wait()
    assert gone(others, 20)
