"""The processes of a run in any session: a variable of their environment identifies them."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "RETRAIN_SOAK"
GONE_SECONDS = 20.0  # for a server to notice that its run has ended


@dataclass(frozen=True)
class Run:
    """A run that was started.

    Attributes:
        process: Its main process, which leads a session.
        mark: The value of `MARK` in the environment of all its processes.
        log: The file with its output.
    """

    process: "subprocess.Popen[bytes]"
    mark: str
    log: Path

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it goes on."""
        return self.process.poll()

    @property
    def output(self) -> str:
        """What it printed so far, on both streams."""
        return self.log.read_text(errors="replace")

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
        end_all(self.mark)
        self.process.wait()


def start(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Run:
    """Starts a run in a folder, in a session of its own."""
    log = folder / "soak.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    return Run(process, environment[MARK], log)


def end_all(mark: str) -> None:
    """Kills all processes whose mark begins like this."""
    while processes := _marked(mark):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=1)


def left_over(mark: str) -> list[str]:
    """The commands of processes that are still there after some time."""
    deadline = time.monotonic() + GONE_SECONDS
    while (processes := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    commands = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            commands.append(" ".join(process.cmdline())[:120])
    return commands


def _marked(mark: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["environ", "status"])
        if (process.info["environ"] or {}).get(MARK, "").startswith(mark)
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
