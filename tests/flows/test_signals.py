"""A run that is ended from outside: real processes, in a clone with a server inside each run."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from time import monotonic

import psutil
import pytest

from tests import templates
from tests.flows.conftest import make_clone, until


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = make_clone(tmp_path_factory.mktemp("ended"), "")
    templates.place_prefect_database(made.root)
    templates.place_mlflow_database(made.root)
    return made


@pytest.fixture
def run(clone):
    """Starts a run in a session of its own; gives it back when it trains, with its processes."""
    started = []

    def start(**environment):
        for old in scratch(clone):
            old.unlink()
        process = subprocess.Popen(
            [sys.executable, "-m", "retrain.cli", "train", "vit", "--set", "train.epochs=100000",
             "--set", "scale.checkpoint_seconds=0.1"],
            cwd=clone.root,
            env=clone.environment | environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        started.append(process)
        until(lambda: scratch(clone) or process.poll() is not None, 180)
        assert process.poll() is None, process.communicate()
        others = psutil.Process(process.pid).children(recursive=True)
        assert any("uvicorn" in other.cmdline() for other in others)
        return process, others

    yield start
    for process in started:
        process.kill()
        process.communicate()


def scratch(clone):
    """The checkpoints of trainings that are not over."""
    return list(
        (clone.root / ".retrain" / "store" / "scratch" / "train").glob("*/checkpoints/*.pt")
    )


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


@pytest.fixture
def webhook():
    """Where a webhook is, and what it received."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(
                json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"]
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", received
        server.shutdown()
        thread.join()


def test_sigterm_ends_a_run_as_ctrl_c_does_and_people_are_notified(run, clone, webhook):
    url, received = webhook
    process, others = run(RETRAIN_WEBHOOK_URL=url)
    began = monotonic()
    os.kill(process.pid, signal.SIGTERM)
    _, output = process.communicate(timeout=60)
    print("seconds", monotonic() - began)
    assert process.returncode == 143, output
    assert output.splitlines()[-1] == "retrain: Terminated."  # below the forecast of the training
    assert monotonic() - began < 20  # 3 s on an idle machine
    assert gone(others, 5)
    assert state(clone) == "CRASHED"
    assert tracked(clone) == "FAILED"
    [text] = received
    assert text.startswith("vit: the run crashed. Execution was aborted by a termination signal.")


def test_ctrl_c_ends_a_run_at_once(run, clone):
    process, others = run()
    began = monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
    _, output = process.communicate(timeout=60)
    print("seconds", monotonic() - began)
    assert process.returncode == 130, output
    assert monotonic() - began < 20
    assert gone(others, 5)
    assert state(clone) == "CRASHED"


def test_a_killed_run_leaves_no_server_behind(run):
    process, others = run()
    process.kill()
    process.wait()
    assert gone(others, 20)
