"""Prefect servers that are up before the runs begin, as the one of `make up` is."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.flows.conftest import Clone, until
from tests.soak.processes import MARK, end_all

HOST = "127.0.0.1"
START_SECONDS = 180.0  # with its database
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Server:
    """A Prefect server.

    Attributes:
        api: Its address.
        database: The file with its runs.
    """

    api: str
    database: Path


@contextmanager
def servers(clone: Clone, root: Path, count: int) -> Iterator[list[Server]]:
    """Starts servers, each with a database of its own in a folder, and stops them at the end.

    Args:
        clone: Has their settings and their code.
        root: The folder.
        count: How many.
    """
    with ExitStack() as stack:
        started = [stack.enter_context(_server(clone, root / f"server-{n}")) for n in range(count)]
        for server in started:
            until(lambda server=server: _answers(server), START_SECONDS)
        yield started


@contextmanager
def _server(clone: Clone, home: Path) -> Iterator[Server]:
    """Starts a server with the command of `make up`; it ends with this process in any case."""
    home.mkdir()
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = str(probe.getsockname()[1])
    server = Server(f"http://{HOST}:{port}/api", home / "prefect.db")
    own = {"PREFECT_HOME": str(home), "PREFECT_API_URL": server.api, MARK: str(home)}
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "retrain.servers.program", "ephemeral",
             "prefect", "server", "start", "--host", HOST, "--port", port],
            cwd=clone.root, env=clone.environment | own, stdin=subprocess.PIPE,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield server
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            end_all(home)
        process.wait()


def _answers(server: Server) -> bool:
    try:
        with urlopen(f"{server.api}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False
