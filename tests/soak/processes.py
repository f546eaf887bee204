"""The processes of the runs in a folder.

A run leads a session, to which the processes belong that it forks. Those that it starts with
another program may have a session of their own; a variable of their environment identifies them.
"""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

import psutil

MARK = "RETRAIN_SOAK"  # its value is the folder of the run
GONE_SECONDS = 20.0  # for a server to notice that its run has ended

_sessions: dict[Path, set[int]] = defaultdict(set)  # of the runs in each folder
_starting = Lock()
_over = Event()


@dataclass(frozen=True)
class Run:
    """A run that was started.

    Attributes:
        process: Its main process, which leads a session.
        folder: The folder that it runs in.
    """

    process: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it goes on."""
        return self.process.poll()

    @property
    def output(self) -> str:
        """What it printed so far, on both streams."""
        return _log(self.folder).read_text(errors="replace")

    def wait(self, seconds: float) -> int | None:
        """Waits for its main process; None if that goes on after this time."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None

    def signal_group(self, number: signal.Signals) -> None:
        """Sends a signal to its process group, as a terminal does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end_all(self) -> None:
        """Kills all its processes."""
        end_all(self.folder)
        self.process.wait()


def start(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Run:
    """Starts `retrain` in a folder, in a session of its own."""
    log = _log(folder)
    with _starting, log.open("wb") as output:
        assert not _over.is_set(), "Ctrl-C was pressed."
        process = subprocess.Popen(
            [sys.executable, "-m", "retrain.cli", *arguments],
            cwd=folder,
            env={**environment, MARK: str(folder)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        _sessions[folder].add(process.pid)
    return Run(process, folder)


def stop(folder: Path) -> None:
    """Kills all processes of the runs in a folder, and lets no run start from now on."""
    with _starting:
        _over.set()
    end_all(folder)


def end_all(folder: Path) -> None:
    """Kills all processes of the runs in a folder and the folders below it."""
    while processes := _processes(folder):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=1)


def left_over(folder: Path) -> list[str]:
    """The commands of processes that are still there after some time."""
    deadline = time.monotonic() + GONE_SECONDS
    while (processes := _processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    commands = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            commands.append(" ".join(process.cmdline())[:120])
    return commands


def forget(folder: Path) -> None:
    """Forgets the sessions of the runs in a folder: the system gives their numbers to others."""
    del _sessions[folder]


def _processes(folder: Path) -> list[psutil.Process]:
    below = [each for each in list(_sessions) if each.is_relative_to(folder)]
    sessions = set[int]().union(*(_sessions[each] for each in below))
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if (_session(process) in sessions or _is_marked(process, folder))
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def _session(process: psutil.Process) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return None


def _is_marked(process: psutil.Process, folder: Path) -> bool:
    mark = (process.info["environ"] or {}).get(MARK)
    return mark is not None and Path(mark).is_relative_to(folder)


def _log(folder: Path) -> Path:
    return folder / "soak.log"
