"""What tests share: one Ray for the whole session, and projects in temporary folders."""

import json
import os
import shutil
import signal
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import retrain  # noqa: F401  telemetry off, before any library is imported
from retrain.runs import notify
from tests import templates

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
# Ray's workers would wait for the other processes of a test run, which use all cores.
os.environ.setdefault("RAY_worker_niceness", "0")
# OpenMP's threads would wait in a loop for the next piece of work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell lets its background jobs ignore Ctrl-C; the processes that tests start must not do so.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def ray_session():
    """Ray, started once for all tests that need it."""
    from retrain.servers import ray_cluster

    ray_cluster.connect()
    yield
    ray_cluster.disconnect()


@pytest.fixture
def few_calls(monkeypatch):
    """Has the latency measured with the fewest calls, where it does not matter."""
    from tasks.promote import latency

    monkeypatch.setattr(latency, "SECONDS", 0.0)


@pytest.fixture(scope="session")
def prefect_session():
    """A Prefect server with a database of its own, started once for all tests that need it."""
    from prefect.testing import utilities

    folder = Path(tempfile.mkdtemp(prefix="retrain-prefect-"))  # Prefect removes it
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
