"""What tests share: one Ray for the whole session, and projects in temporary folders."""

import os
import shutil
import signal

import pytest

import retrain  # noqa: F401  telemetry off, before any library is imported
from tests import templates

os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")

# A shell lets its background jobs ignore Ctrl-C; the processes that tests start must not do so.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Files whose tests take longest. Begun last, one of them would keep one process busy alone.
LONG = ("tests/flows/", "tests/tasks/train/test_workers.py", "tests/retrain/servers/")


def pytest_collection_modifyitems(items):
    """Puts the files with the longest tests first."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="session")
def ray_session():
    """Ray, started once for all tests that need it."""
    from retrain.servers import ray_cluster

    ray_cluster.connect()
    yield
    ray_cluster.disconnect()


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


def pytest_sessionfinish(session):
    """Removes what the processes of this test run have shared, at the end of the last of them."""
    if not hasattr(session.config, "workerinput"):
        shutil.rmtree(templates.FOLDER, ignore_errors=True)
