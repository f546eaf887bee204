"""Runs the command line in a fork of a process that has imported the libraries.

Importing them takes longer than most of the tests' runs. The fork imports the project's own code
from the clone, and has a session, a working folder, an environment and an output of its own. It
ends as a command does: with the same exit codes, and after the same clean-up.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection, resource_tracker
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from time import sleep

# Of Prefect's nothing: it reads its settings when it is imported.
LIBRARIES = (
    "dvc.repo",
    "great_expectations",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "mlflow",
    "ray.data",
    "ray.train.torch",
    "torch",
    "transformers.models.vit.modeling_vit",
)

forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(list(LIBRARIES))

# `multiprocessing` looks after all its processes whenever it starts one; with two threads, the
# exit code would be read twice.
_lock = threading.Lock()


class Fork:
    """A command that was started, with the part of `subprocess.Popen` that is needed here."""

    def __init__(self, arguments: Sequence[str], *rest: object) -> None:
        """Starts it; the arguments are those of `_command`."""
        self.args = arguments
        self._process = forks.Process(target=_command, args=(arguments, *rest))
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
        process = start(arguments, root, environment, *files)
        try:
            code = process.wait()
        except BaseException:
            process.send_signal(signal.SIGKILL)  # Ctrl-C does not reach it
            raise
        return CompletedProcess(
            arguments, code, *(file.read_text(encoding="utf-8") for file in files)
        )


def _command(
    arguments: Sequence[str], root: Path, environment: Mapping[str, str], files: Sequence[Path]
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    os.setsid()
    _forget_the_fork_server()
    for descriptor, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), descriptor)
    os.chdir(root)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.insert(0, str(root))
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


def _forget_the_fork_server() -> None:
    """Lets the command start processes as if it had not been started by `multiprocessing`."""
    multiprocessing.set_start_method(None, force=True)
    resource_tracker._resource_tracker._fd = None
