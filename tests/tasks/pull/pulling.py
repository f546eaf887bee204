"""What the tests of `tasks.pull.step` and its helpers share: projects, and a pull of their data."""

import os
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq

from retrain.project import Project
from retrain.step import DataVersion, Workspace
from retrain.workload import Data
from tasks.pull.step import data_version, pull
from tests.tasks.toy_data import png, write_files, write_parquet


def make_files(folder: Path, *names: str) -> None:
    """Writes files, each with its name as its content, or as the path of its image."""
    for name in names:
        if name.endswith(".parquet"):
            write_parquet(folder / name, [{"bytes": png(0), "path": name}], ["cat"])
        else:
            write_files(folder, {name: name.encode()})


def read_files(folder: Path) -> dict[str, str]:
    """The content of every file in a folder; of a Parquet file, the path of its image."""
    return {
        path.relative_to(folder).as_posix(): pq.read_table(path)["image"][0]["path"].as_py()
        if path.suffix == ".parquet"
        else path.read_text(errors="replace")
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def pulled(
    project: Project, path: str | Path, revision: str | None = None, **data: str
) -> tuple[DataVersion, dict[str, str], dict]:
    """Pulls data as a run does.

    Returns:
        Its version, the content of its files, and its format.
    """
    config = Data(path=str(path), **data)
    version = data_version(config, project, revision)
    with tempfile.TemporaryDirectory() as folder:
        facts = pull(config, version, make_workspace(Path(folder), project))
        files = read_files(Path(folder) / "output" / "data")
        return version, files, {"format": facts["format"]}


def version_of(project: Project, path: str | Path, **data: str) -> str:
    """The digest of the version of data."""
    return data_version(Data(path=str(path), **data), project).digest


def make_workspace(folder: Path, project: Project) -> Workspace:
    """An empty workspace."""
    (folder / "output").mkdir(parents=True)
    (folder / "scratch").mkdir()
    return Workspace(folder / "output", folder / "scratch", "key", "vit", project)


def run(folder: Path, *command: str) -> str:
    """Runs a command, which must succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.check_output(command, cwd=folder, text=True, env=environment)


def dvc(folder: Path, *arguments: str) -> str:
    """Runs DVC's own command line."""
    return run(folder, sys.executable, "-m", "dvc", *arguments)


def git(folder: Path, *arguments: str) -> str:
    """Runs git, as somebody."""
    who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    return run(folder, "git", *who, *arguments)


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serves HTTP on a free port of this machine; gives the URL of its root."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
