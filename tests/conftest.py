"""What tests share: one Ray for the whole session, and projects in temporary folders."""

import gc
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

import retrain  # noqa: F401  telemetry off, before any library is imported
from retrain.runs import notify
from tests import templates, warm_python

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
# Ray's workers would wait for the other processes of a test run, which use all cores.
os.environ.setdefault("RAY_worker_niceness", "0")
# OpenMP's threads would wait in a loop for the next piece of work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell lets its background jobs ignore Ctrl-C; the processes that tests start must not do so.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The files of a group run in one process, which starts Ray or a Prefect server for them once. The
# longest come first: begun last, they would keep one process busy alone.
GROUPS = (
    (  # Prefect, in three groups: many of these tests mostly wait
        "tests/flows/test_train.py",
        "tests/retrain/test_limits.py",
        "tests/tasks/promote/test_approval.py",
        "tests/tasks/promote/test_rollback.py",
    ),
    (  # Ray
        "tests/tasks/train/test_workers.py",
        "tests/tasks/train/test_function.py",
        "tests/tasks/train/test_pruning.py",
        "tests/tasks/train/test_stream.py",
        "tests/tasks/embed/",
        "tests/tasks/compute/",
        "tests/tasks/preprocess/",
        "tests/tasks/validate/",
        "tests/tasks/data/",
        "tests/tasks/evaluate/test_step.py",
        "tests/tasks/predict/",
        "tests/retrain/servers/test_ray_cluster.py",
    ),
    (
        "tests/flows/test_three_ways.py",
        "tests/flows/test_rollback.py",
        "tests/flows/test_store.py",
        "tests/flows/test_predict.py",
    ),
    (
        "tests/flows/test_reproduce.py",
        "tests/flows/test_tune.py",
        "tests/flows/test_validate.py",
        "tests/flows/test_secrets.py",
        "tests/retrain/runs/",
    ),
    ("tests/retrain/servers/test_services.py",),
    ("tests/flows/test_signals.py",),
    ("tests/flows/test_decide.py",),
    ("tests/tasks/promote/test_kills.py",),
)


def pytest_configure(config):
    """Has the processes of pytest-xdist, and all that tests start, run by the warm Python."""
    sys.executable = warm_python.start()
    multiprocessing.set_executable(sys.executable)
    if not hasattr(config, "workerinput"):
        config.option.tx = [f"{each}//python={sys.executable}" for each in config.option.tx or ()]


def pytest_collection_modifyitems(items):
    """Puts the groups first."""
    items.sort(key=lambda item: _group(item.nodeid))


def pytest_xdist_make_scheduler(config, log):
    """Gives a process a group or a file at a time."""
    return _Scheduling(config, log)


class _Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid):
        group = _group(nodeid)
        return str(group) if group < len(GROUPS) else super()._split_scope(nodeid)


def _group(nodeid):
    """The number of a test's group; after all of them for a file that has none."""
    matches = (number for number, files in enumerate(GROUPS) if nodeid.startswith(files))
    return next(matches, len(GROUPS))


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Has the garbage collector leave out what is imported: some tests call it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def ray_session():
    """Ray, started once for all tests that need it."""
    from retrain.servers import ray_cluster

    ray_cluster.connect()
    yield
    ray_cluster.disconnect()


@pytest.fixture
def real_python(monkeypatch):
    """Python as a user has it."""
    monkeypatch.setattr(sys, "executable", warm_python.REAL)


@pytest.fixture
def few_calls(monkeypatch):
    """Has the latency measured with the fewest calls, where it does not matter."""
    from tasks.promote import latency

    monkeypatch.setattr(latency, "SECONDS", 0.0)


@pytest.fixture(scope="session")
def prefect_session(tmp_path_factory):
    """A Prefect server with a database of its own, started once for all tests that need it."""
    from prefect.testing import utilities

    folder = tmp_path_factory.mktemp("prefect")
    templates.place_prefect_database(folder, "prefect-test.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utilities, "mkdtemp", lambda: str(folder))  # where it creates the database
        with utilities.prefect_test_harness(server_startup_timeout=180):  # on a busy machine
            yield


@pytest.fixture
def webhook(monkeypatch):
    """A server on loopback; what it received."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.headers["Content-Type"] == "application/json"
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if self.path == "/slow":
                time.sleep(2)
            self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv(notify.URL, f"http://127.0.0.1:{server.server_port}/secret")
    yield received
    server.shutdown()
    thread.join()
    server.server_close()


def pytest_sessionfinish(session):
    """Removes what the processes of this test run have shared, at the end of the last of them."""
    if not hasattr(session.config, "workerinput"):
        shutil.rmtree(templates.FOLDER, ignore_errors=True)
