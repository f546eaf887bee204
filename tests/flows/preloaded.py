"""Runs the command line in a fork of a process that has imported what it needs.

Importing the libraries takes longer than most of the tests' runs. The fork imports the project's
own code from the clone, and has a session, a working folder, an environment and an output of its
own. It ends as a command does: with the same exit codes, and after the same clean-up.

`start` forks a process that has imported the libraries only. `Clone.retrain` runs many commands in
one clone: there, `run` forks a process that has imported the clone's code, too.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import connection, resource_tracker
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any

from tests.libraries import LIBRARIES, forget

CODE = ("flows", "models", "retrain", "tasks")
RAY = ("ray.data", "ray.train.torch", "ray.tune")

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload([*LIBRARIES, *RAY])

# `multiprocessing` looks after all its processes whenever it starts one; with two threads, the
# exit code would be read twice.
_lock = threading.Lock()


class Fork:
    """A command that was started, with the part of `subprocess.Popen` that is needed here."""

    def __init__(self, arguments: Sequence[str], *rest: object) -> None:
        """Starts it; the arguments are those of `_command`."""
        self.args = arguments
        self._process = forks.Process(target=_new_command, args=(arguments, *rest))
        with _lock:
            self._process.start()
        assert self._process.pid
        self.pid: int = self._process.pid
        with suppress(ProcessLookupError):
            while os.getsid(self.pid) != self.pid:  # not yet: a signal to its group would be lost
                sleep(0.001)

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it goes on."""
        with _lock:
            return self._process.exitcode

    def poll(self) -> int | None:
        """The same as `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended.

        Raises:
            subprocess.TimeoutExpired: It goes on after so many seconds.
        """
        connection.wait([self._process.sentinel], timeout)
        if (code := self.returncode) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Sends it a signal if it goes on."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start(
    arguments: Sequence[str],
    root: Path,
    environment: Mapping[str, str],
    output: Path,
    errors: Path,
) -> Fork:
    """Starts `retrain` in a clone; both outputs are appended to files, or to the same one."""
    for file in (output, errors):
        file.touch()
    return Fork(arguments, root, environment, (output, errors))


def run(
    arguments: Sequence[str], root: Path, environment: Mapping[str, str]
) -> CompletedProcess[str]:
    """Runs `retrain` in a clone, as `subprocess.run` does with captured output."""
    with TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("output", "errors")]
        if environment["PREFECT_API_URL"]:
            for file in files:
                file.touch()
            code = _server_of(root, environment).run(arguments, files)
        else:  # the command starts a server, and imports Prefect then
            code = start(arguments, root, environment, *files).wait()
        return CompletedProcess(
            arguments, code, *(file.read_text(encoding="utf-8") for file in files)
        )


class _Server:
    """A process that has imported a clone's code, and has the clone's settings of Prefect."""

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self.state = _state(root, environment)
        self._ours, theirs = forks.Pipe()
        self._process = forks.Process(target=_serve, args=(root, environment, theirs), daemon=True)
        with _lock:
            self._process.start()
        theirs.close()

    def run(self, arguments: Sequence[str], files: Sequence[Path]) -> int:
        """Runs a command in a fork; returns its exit code."""
        self._ours.send((arguments, files))
        code: int = self._ours.recv()
        return code

    def stop(self) -> None:
        """Ends it."""
        self._ours.close()
        self._process.join()


_servers: dict[Path, _Server] = {}


def _server_of(root: Path, environment: Mapping[str, str]) -> _Server:
    """The server of a clone; a new one if its code or the environment has changed."""
    server = _servers.get(root)
    if server is None or server.state != _state(root, environment):
        if server is not None:
            server.stop()
        server = _servers[root] = _Server(root, environment)
    return server


def _state(root: Path, environment: Mapping[str, str]) -> tuple[object, ...]:
    """What a server has imported, and with what."""
    code = sorted(path for package in CODE for path in (root / package).rglob("*.py"))
    settings = root / "prefect.toml"
    return dict(environment), [(path, path.stat().st_mtime_ns) for path in (*code, settings)]


def _serve(root: Path, environment: Mapping[str, str], requests: "connection.Connection") -> None:
    """Imports the clone's code, and runs each command that comes in a fork."""
    from prefect.context import refresh_global_settings_context

    _enter(root, environment)
    os.environ.setdefault("PREFECT_HOME", str(root / ".retrain" / "prefect"))  # as a command does
    refresh_global_settings_context()
    flows = [f"flows.{path.stem}" for path in (root / "flows").glob("[!_]*.py")]
    for name in ("retrain.cli.main", *flows, *_steps(root)):
        import_module(name)
    _read_code(root)
    gc.collect()
    gc.freeze()  # else each fork looks through it, and so copies all of it
    with suppress(EOFError):
        while True:
            arguments, files = requests.recv()
            if not (pid := os.fork()):
                requests.close()
                code = 1
                try:
                    _command(arguments, root, environment, files)
                    code = 0
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else 1
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            requests.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _steps(root: Path) -> list[str]:
    """The modules of the steps."""
    return [f"tasks.{path.parent.name}.step" for path in (root / "tasks").glob("*/step.py")]


def _read_code(root: Path) -> None:
    """Lets the forks find the digests of the clone's files, as long as these stay the same."""
    from retrain.code import code_digests

    families = [f"models.{path.stem}" for path in (root / "models").glob("[!_]*.py")]
    code_digests([*_steps(root), *families])


def _new_command(*arguments: Any) -> None:
    """Lets a command import Prefect after it has named a server, as it does with a new Python."""
    forget()
    _command(*arguments)


def _command(
    arguments: Sequence[str], root: Path, environment: Mapping[str, str], files: Sequence[Path]
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    os.setsid()
    _forget_the_fork_server()
    for descriptor, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), descriptor)
    _enter(root, environment)
    sys.argv = ["retrain", *arguments]
    try:
        try:
            runpy.run_module("retrain.cli", run_name="__main__", alter_sys=True)
        finally:  # what Python does at its end, and `multiprocessing` leaves out or does too late
            with suppress(BaseException):  # of another signal; Python goes on here, too
                threading._shutdown()
            atexit._run_exitfuncs()
    except KeyboardInterrupt:  # Python ends itself in this way if the command did not handle it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _enter(root: Path, environment: Mapping[str, str]) -> None:
    """Gives this process a clone's folder, code and environment."""
    os.chdir(root)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(root))


def _forget_the_fork_server() -> None:
    """Lets the command start processes as if it had not been started by `multiprocessing`."""
    multiprocessing.set_start_method(None, force=True)
    resource_tracker._resource_tracker._fd = None
