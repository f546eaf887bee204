"""The Prefect server that a run brings along where none is up, and what is done while it starts.

Prefect would start the same server by itself, and wait for it: 5 s, and 12 s where its database has
to be made. Started here, it comes up in a process of its own while this one imports what the steps
are going to need. A first run on two cores was 2 and 11 s longer without it.
"""

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep

from retrain.project import Project
from retrain.runs import console

HOST = "127.0.0.1"
START_SECONDS = 120.0  # a first start makes a database, on a machine that may be busy
STOP_SECONDS = 5.0


def start_ephemeral_server(project: Project, meanwhile: Iterable[Callable[[], object]]) -> None:
    """Starts a Prefect server that ends with this process, after all else that does.

    It is in `PREFECT_API_URL` from the beginning. To be called before Prefect is imported.

    Args:
        project: The clone; its `prefect.toml` has the settings.
        meanwhile: What to do while the server starts, in this order; what is left when it is up is
            left out. An error is no harm: what needs it will meet it again.

    Raises:
        RuntimeError: The server ended at its start, or took too long; its output is in the log.
    """
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    process = _start(project, port)
    os.environ["PREFECT_API_URL"] = f"http://{HOST}:{port}/api"
    atexit.register(_stop, process)  # first to be registered, last to be called
    with console.running("starting"):
        for do in meanwhile:
            if _is_up(port):
                break
            with suppress(Exception):
                do()
        deadline = monotonic() + START_SECONDS
        while not _is_up(port):
            if process.poll() is not None or monotonic() > deadline:
                raise RuntimeError("The run's own Prefect server did not start.")
            sleep(0.1)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _start(project: Project, port: int) -> "subprocess.Popen[bytes]":
    """As Prefect's `SubprocessASGIServer` does it."""
    prefect = find_spec("prefect")
    assert prefect and prefect.origin
    folder = Path(prefect.origin).parents[1]
    app = ("--factory", "prefect.server.api.server:create_app", "--app-dir", str(folder))
    ours = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "retrain.servers.watched", "uvicorn", *app, "--host", HOST,
         "--port", str(port), "--log-level", "error", "--lifespan", "on"],
        cwd=project.root,
        env=os.environ | ours | {"PREFECT__SERVER_FINAL": "1"},
        stdin=subprocess.PIPE,  # closed by the end of this process, whatever ends it
        start_new_session=True,  # Ctrl-C is for the run, which still needs its server
    )  # fmt: skip


def _is_up(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/api/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
