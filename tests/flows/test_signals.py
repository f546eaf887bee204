"""A run that is ended from outside: real processes, in a clone with a server inside each run.

Forks, which other tests and the soak run, must end in the same way as a command of its own.
"""

import json
import os
import signal
import sqlite3
import subprocess
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from time import monotonic

import psutil
import pytest

from tests import templates, warm_python
from tests.flows import preloaded
from tests.flows.conftest import make_clone, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    made = make_clone(tmp_path_factory.mktemp("ended"), "")
    templates.place_prefect_database(made.root)
    templates.place_mlflow_database(made.root)
    return made


TRAIN = ("train", "vit", "--set", "train.epochs=100000", "--set", "scale.checkpoint_seconds=0.1")


def command(root, environment, output):
    """Starts the run as a person does."""
    with output.open("wb") as stream:
        return subprocess.Popen(
            [warm_python.REAL, "-m", "retrain.cli", *TRAIN],
            cwd=root,
            env=environment,
            start_new_session=True,
            stdout=stream,
            stderr=stream,
        )


def fork(root, environment, output):
    """Starts the run as most tests do."""
    return preloaded.start(TRAIN, root, environment, output, output)


@pytest.fixture
def run(request, clone, tmp_path):
    """Starts a run in a session of its own; gives it back when it trains, with its processes."""
    started = []
    output = tmp_path / "output"

    def start(**environment):
        for old in scratch(clone):
            old.unlink()
        process = request.param(clone.root, clone.environment | environment, output)
        started.append(process)
        until(lambda: scratch(clone) or process.poll() is not None, 180)
        assert process.poll() is None, output.read_text()
        assert os.getsid(process.pid) == process.pid
        others = psutil.Process(process.pid).children(recursive=True)
        assert any("uvicorn" in other.cmdline() for other in others)
        return process, others, output

    yield start
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait()


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


@pytest.mark.parametrize("run", [fork], indirect=True, ids=["fork"])
def test_sigterm_ends_a_run_as_ctrl_c_does_and_people_are_notified(run, clone, webhook):
    url, received = webhook
    process, others, output = run(RETRAIN_WEBHOOK_URL=url)
    began = monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143, output.read_text()
    print("seconds", monotonic() - began)
    assert output.read_text().endswith("\nretrain: Terminated.\n")
    assert monotonic() - began < 20  # 3 s on an idle machine
    assert gone(others, 5)
    assert state(clone) == "CRASHED"
    assert tracked(clone) == "FAILED"
    [text] = received
    assert text.startswith("vit: the run crashed. Execution was aborted by a termination signal.")


@pytest.mark.parametrize("run", [command], indirect=True, ids=["command"])
def test_ctrl_c_ends_a_run_after_its_step_and_says_how_to_go_on(run, clone):
    process, others, output = run()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    began = monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
    assert process.wait(timeout=60) == 130, output.read_text()
    print("seconds", monotonic() - began)
    assert monotonic() - began < 20
    assert gone(others, 5)
    assert state(clone) == "CRASHED"
    step = max(int(path.name.split("-")[0]) for path in scratch(clone))
    said = f"train ended at step {step}. The same command goes on from there."
    assert said in output.read_text()


@pytest.mark.parametrize("run", [fork], indirect=True, ids=["fork"])
def test_a_killed_run_leaves_no_server_behind(run):
    process, others, _ = run()
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert gone(others, 20)
