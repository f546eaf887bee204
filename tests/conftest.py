"""What tests share: one Ray for the whole session, and projects in temporary folders."""

import faulthandler
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import retrain  # noqa: F401  telemetry off, before any library is imported
from retrain.runs import notifications
from tests import templates

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
# Ray's workers would wait for the other processes of a test run, which use all cores.
os.environ.setdefault("RAY_worker_niceness", "0")
# OpenMP's threads would wait in a loop for the next piece of work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Of the trace of a process that crashed; the list of its libraries follows.
CRASH_CHARACTERS = 6000

# A shell lets its background jobs ignore Ctrl-C; the processes that tests start must not do so.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def ray_session():
    """Ray, started once for all tests that need it."""
    from retrain.servers import ray_cluster

    ray_cluster.connect()
    yield
    ray_cluster.disconnect()
    logs = Path(tempfile.gettempdir(), "ray").glob(f"session_*_{os.getpid()}/logs/worker-*.err")
    for log in logs:  # a run replaces a worker that crashes, and shows no trace of it
        text = log.read_text(encoding="utf-8", errors="replace")
        _, crash, trace = text.partition("Fatal Python")
        if crash:
            warnings.warn(f"A worker of Ray has crashed: {crash}{trace[:3000]}", stacklevel=1)


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


@pytest.fixture(scope="session")
def s3_server():
    """An S3 server in a process of its own, started once for all tests that need it; its URL."""
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    line = next(line for line in server.stderr if "http:" in line)
    url = re.search(r"http://\S+", line)[0]
    threading.Thread(target=server.stderr.read, daemon=True).start()
    yield url
    server.terminate()
    server.wait()


@pytest.fixture
def bucket(s3_server, monkeypatch):
    """A new bucket, with the environment to reach it; its URL."""
    import boto3

    variables = {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1"}
    for name, value in (variables | {"ENDPOINT_URL": s3_server}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = f"team-{secrets.token_hex(4)}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}/prefix"


@contextmanager
def listening():
    """A server on loopback for the webhook, whose URL is in the environment; what it received."""
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

    url = "http://127.0.0.1:{}/secret"
    with HTTPServer(("127.0.0.1", 0), Handler) as server, pytest.MonkeyPatch.context() as patch:
        threading.Thread(target=server.serve_forever).start()
        patch.setenv(notifications.URL, url.format(server.server_port))
        yield received
        server.shutdown()


@pytest.fixture
def webhook():
    """A server on loopback; what it received."""
    with listening() as received:
        yield received


def pytest_collection_modifyitems(items):
    """Has the files begin first that take longest, beside those that wait for a first run."""
    first = ("test_combinations.py", "test_runs.py", "test_scoring_client.py", "test_ray_data.py")
    items.sort(key=lambda item: (*first, item.path.name).index(item.path.name))


def pytest_sessionstart(session):
    """Has a process of pytest-xdist that crashes write where it was, which is shown at the end."""
    if hasattr(session.config, "workerinput"):
        faulthandler.enable((templates.FOLDER / f"{os.getpid()}.crash").open("w"))


def pytest_sessionfinish(session):
    """Removes what the processes of this test run have shared, at the end of the last of them."""
    if not hasattr(session.config, "workerinput"):
        for crash in templates.FOLDER.glob("*.crash"):
            print(crash.read_text()[:CRASH_CHARACTERS], end="")
        shutil.rmtree(templates.FOLDER, ignore_errors=True)
