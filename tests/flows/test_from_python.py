"""Flows that are called from Python, as in a notebook, without the command line."""

import signal
import sqlite3
import sys
from contextlib import closing

import pytest

from tests import templates
from tests.flows.conftest import make_clone

pytestmark = pytest.mark.slow

# Somebody else's flow, on the server that Prefect itself starts; its record goes on as running.
SOMEBODY = """
import os, signal, psutil
from prefect import flow

@flow
def night_job():
    for server in psutil.Process().children(recursive=True):
        server.kill()
    os.kill(os.getpid(), signal.SIGKILL)

night_job()
"""

# As a notebook does: in an event loop. Then Prefect is imported before the project.
THREE = """
import asyncio
import psutil
import prefect
from flows.validate import validate

def servers():
    commands = [child.cmdline() for child in psutil.Process().children(recursive=True)]
    return sum("uvicorn" in command for command in commands)

async def cells():
    return [(validate("vit", run=True)["outcome"], servers()) for _ in range(3)]

print(*asyncio.run(cells()), sep="\\n")
"""

STATES = "SELECT flow.name, state_name FROM flow_run JOIN flow ON flow.id = flow_id ORDER BY 1"


def states(database):
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(STATES).fetchall()


@pytest.mark.parametrize("own", ["home", "database"])
def test_the_prefect_of_other_people_is_left_alone_and_one_server_serves_all_calls(tmp_path, own):
    clone, home = make_clone(tmp_path / "clone", ""), tmp_path / "home"
    templates.place_prefect_database(home, ".prefect/prefect.db")
    templates.place_prefect_database(clone.root)
    templates.place_mlflow_database(clone.root)
    theirs = home / ".prefect" / "prefect.db"
    environment = {"HOME": str(home), "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180"}
    if own == "database":
        environment["PREFECT_HOME"] = str(home / ".prefect")
        url = f"sqlite+aiosqlite:///{theirs}"
        environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = url
    clone.run(sys.executable, "-c", SOMEBODY, code=-signal.SIGKILL, **environment)
    before = states(theirs)
    assert before == [("night-job", "Running")]
    done = clone.run(sys.executable, "-c", THREE, **environment)
    assert done.stdout.count("passes its checks.', 1)") == 3, done.stdout
    assert states(theirs) == before
    ours = clone.root / ".retrain" / "prefect" / "prefect.db"
    assert states(ours) == [("validate", "Completed")] * 3
