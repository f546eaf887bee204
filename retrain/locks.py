"""Locks on files, which keep processes of one machine or of several apart; and runs that hold one.

The system releases a lock when the process that holds it ends in any way. The file says which
process has it, for people who wait.
"""

import errno
import os
import shutil
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from rich.markup import escape

from retrain.runs import console

if TYPE_CHECKING:
    from filelock import FileLock

# The errors of a file system that cannot lock.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
LONGEST_COMMAND = 200  # characters
UNKNOWN = "another process has it"


@contextmanager
def locked(path: Path, *, wait: bool = True, purpose: str = "") -> Iterator[None]:
    """Holds the lock of a file, which is created; its folder exists.

    A wait of more than two seconds is shown, with the process that has the lock.

    Args:
        path: The file. A process that holds the lock may delete it.
        wait: Whether to wait until another process releases it.
        purpose: The sentence for people about a wait, to which the process is added.

    Raises:
        filelock.Timeout: Another process holds it, and `wait` is false.
        ValueError: The file system has no locks.
    """
    from filelock import FileLock

    # A soft lock, a file that is there, would outlive a process that is killed.
    lock = FileLock(path, fallback_to_soft=False, on_acquired=_sign)
    try:
        if wait:
            _wait(lock, path, purpose or f"Waits for the lock {path.name}")
        else:
            lock.acquire(timeout=0)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise ValueError(
            f"{path.parent} is on a file system where files cannot be locked, and two runs would "
            "destroy each other's work. Use a local disk, or mount NFS with its locks "
            "(NFS 4, without nolock)."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _wait(lock: "FileLock", path: Path, purpose: str) -> None:
    """Acquires a lock; shows after a while that it has to wait, and for whom."""
    from filelock import Timeout

    try:
        lock.acquire(timeout=console.QUIET_SECONDS)
    except Timeout:
        console.say(escape(f"{purpose}: {_holder(path)}."))
        lock.acquire()


def _holder(path: Path) -> str:
    """Which process has the lock of a file, and since when, as that process has written it."""
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8") or UNKNOWN
    return UNKNOWN


def signature() -> str:
    """Which process has a lock, and since now, for people who wait."""
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:LONGEST_COMMAND]
    process = f"process {os.getpid()} on {socket.gethostname()} ({command})"
    return f"{process} has it since {datetime.now().astimezone():%F %T %Z}"


def _sign(file: int) -> None:
    """Writes into a lock's file which process has the lock; the file's time stays as it was."""
    status = os.fstat(file)
    with suppress(OSError):  # the disk is full
        os.ftruncate(file, 0)
        os.pwrite(file, signature().encode(errors="replace"), 0)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


_KILLED_SECONDS = 7 * 86400.0
_HOLDS, _STARTS = "*.lock", "*.start"


def _run_of(hold: Path) -> str:
    return hold.stem.rpartition("-")[0]


@dataclass(frozen=True)
class Runs:
    """The runs that use a store.

    Attributes:
        folder: The folder of their locks.
    """

    folder: Path

    @contextmanager
    def holding(self, run: str) -> Iterator[None]:
        """Protects what a run uses and makes from `retrain gc` while it lasts."""
        hold = self._hold(run)
        hold.parent.mkdir(parents=True, exist_ok=True)
        with locked(hold):
            try:
                yield
            finally:
                self._release(hold)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Tells other processes that this one may be about to hold a run, while the block lasts."""
        for left in self._free(_STARTS):
            left.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        own = self.folder / f"{os.getpid()}.start"
        with locked(own):
            try:
                yield
            finally:
                own.unlink(missing_ok=True)

    def lost(self, runs: Collection[str]) -> set[str]:
        """Those of some runs that no process holds, or may be about to hold."""
        own = self.folder / f"{os.getpid()}.start"
        if {*self.folder.glob(_STARTS)} - {*self._free(_STARTS), own}:
            return set()
        held = {*self.folder.glob(_HOLDS)} - {*self._free(_HOLDS)}
        return set(runs) - set(map(_run_of, held))

    def temporary(self, run: str) -> Path:
        """A folder for temporary files, which goes with the run that is `holding` the store."""
        folder = self._hold(run).with_suffix(".files")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def under_way(self) -> list[str]:
        """The processes with a run that goes on, each in words, with its command."""
        killed = set(self._free(_HOLDS))
        holds = [hold for hold in sorted(self.folder.glob(_HOLDS)) if hold not in killed]
        return [_holder(hold).replace(" has it since ", ", since ") for hold in holds]

    def killed(self) -> set[str]:
        """The runs that were killed, until they are forgotten."""
        return set(map(_run_of, self._free(_HOLDS))) - {"dvc"}

    def forget_killed(self) -> None:
        """Removes what killed runs have left, except their scratch."""
        for hold in self._free(_HOLDS):
            self._release(hold)

    def oldest(self) -> float:
        """When the oldest run began that goes on, or was killed and not forgotten for a week.

        Returns:
            Seconds since the epoch; now if there is none.
        """
        began, killed = [time()], set(self._free(_HOLDS))
        for hold in self.folder.glob(_HOLDS):
            with suppress(FileNotFoundError):  # it has ended
                start = hold.stat().st_mtime
                if hold not in killed or time() - start < _KILLED_SECONDS:
                    began.append(start)
        return min(began)

    def _free(self, pattern: str) -> Iterator[Path]:
        """The locks of killed processes; each is held until the next is asked for."""
        from filelock import Timeout

        for lock in self.folder.glob(pattern):
            with suppress(Timeout), locked(lock, wait=False):
                yield lock

    def _release(self, hold: Path) -> None:
        """Removes the files of a run that has ended; the caller has its lock."""
        shutil.rmtree(hold.with_suffix(".files"), ignore_errors=True)
        hold.unlink(missing_ok=True)

    def _hold(self, run: str) -> Path:
        return self.folder / f"{run}-{os.getpid()}.lock"
