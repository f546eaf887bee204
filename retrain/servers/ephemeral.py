"""Starts a Prefect server for a single run, and imports libraries while it starts.

Prefect would start the same server by itself, and wait for it: 5 s, and 12 s if its database has
to be created. Started here, it starts in its own process while this process imports the libraries
that the steps need. On two cores that saved 2 s of a run, and 11 s of a first run.
"""

import atexit
import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic, sleep

from retrain.project import Project
from retrain.runs import console
from retrain.servers import databases
from retrain.servers.reachable import answers

HOST = "127.0.0.1"
START_SECONDS = 120.0  # a first start makes a database, on a machine that may be busy


def start_ephemeral_server(project: Project, meanwhile: Iterable[Callable[[], object]]) -> str:
    """Starts a Prefect server that is stopped at the end of this process, after all other clean-up.

    Args:
        project: The clone; its `prefect.toml` has the settings.
        meanwhile: Called while the server starts, in this order; the rest is skipped when it is
            ready. Errors are ignored here: they are raised again where the result is needed.

    Returns:
        The URL of its API.

    Raises:
        UsageError: A newer version of Prefect has made the database.
        RuntimeError: The server ended at its start, or took too long; its output is in the log.
    """
    databases.check(databases.of_prefect(project), "prefect")
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    process = _start(project, port)
    api = f"http://{HOST}:{port}/api"
    # Closes its input, which ends it, and waits. First to be registered, last to be called.
    atexit.register(process.communicate)
    with console.progress("starting") as show:
        show(None, "the libraries, and a Prefect server, whose database is made the first time")
        gc.disable()  # a sixth of the time of the imports, which leave nothing to collect
        for call in meanwhile:
            if answers(f"{api}/health"):
                break
            with suppress(Exception):
                call()
        gc.enable()
        gc.freeze()
        deadline = monotonic() + START_SECONDS
        while not answers(f"{api}/health"):
            if process.poll() is not None or monotonic() > deadline:
                raise RuntimeError("The run's own Prefect server did not start.")
            sleep(0.1)
    return api


def _start(project: Project, port: int) -> "subprocess.Popen[bytes]":
    """Starts the server in the same way as Prefect's `SubprocessASGIServer`."""
    app = ("--factory", "prefect.server.api.server:create_app")
    settings = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "retrain.servers.program", "ephemeral", "uvicorn", *app,
         "--host", HOST, "--port", str(port), "--log-level", "error", "--lifespan", "on"],
        cwd=project.root,
        env=os.environ | settings | {"PREFECT__SERVER_FINAL": "1"},
        stdin=subprocess.PIPE,  # closed when this process ends, also when it is killed
        start_new_session=True,  # Ctrl-C must not stop the server: the run still needs it
    )  # fmt: skip
