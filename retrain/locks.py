"""Locks on files, which keep processes of one machine or of several apart; and runs that hold one.

The system releases a lock when the process that holds it ends in any way. The file says which
process has it, for people who wait.
"""

import errno
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import time

from rich.markup import escape

from retrain.runs import console

# The errors of a file system that cannot lock.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
LONGEST_COMMAND = 200  # characters
QUIET_SECONDS = 2.0  # of a wait that is not told of
UNKNOWN = "another process has it"


@contextmanager
def locked(
    path: Path, *, wait: bool = True, purpose: str = "", sign: bool = True
) -> Iterator[None]:
    """Holds the lock of a file, which is created; its folder exists.

    A wait of more than two seconds is shown, with the process that has the lock.

    Args:
        path: The file. A process that holds the lock may delete it.
        wait: Whether to wait until another process releases it.
        purpose: The sentence for people about a wait, to which the process is added.
        sign: Whether the file gets the name of this process, in place of the last one's.

    Raises:
        filelock.Timeout: Another process holds it, and `wait` is false.
        ValueError: The file system has no locks.
    """
    from filelock import FileLock, Timeout

    # A soft lock, a file that is there, would outlive a process that is killed.
    lock = FileLock(path, fallback_to_soft=False, on_acquired=_sign if sign else None)
    try:
        lock.acquire(timeout=QUIET_SECONDS if wait else 0)
    except Timeout:
        if not wait:
            raise
        sentence = purpose or f"Waits for the lock {path.name}"
        console.say(escape(f"{sentence}: {_holder(path)}."))
        lock.acquire()
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


def _holder(path: Path) -> str:
    """Which process has the lock of a file, and since when, as that process has written it."""
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8") or UNKNOWN
    return UNKNOWN


def _sign(file: int) -> None:
    """Writes into a lock's file which process has the lock; the file's time stays as it was."""
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:LONGEST_COMMAND]
    process = f"process {os.getpid()} on {socket.gethostname()} ({command})"
    signature = f"{process} has it since {datetime.now().astimezone():%F %T %Z}"
    status = os.fstat(file)
    with suppress(OSError):  # the disk is full
        os.ftruncate(file, 0)
        os.pwrite(file, signature.encode(errors="replace"), 0)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


_HOLDS = "*.lock"
# Tells a process from one with the same number in another container that shares the store.
TOKEN = secrets.token_hex(8)
STARTING = "starting"  # is held by a process that may be about to hold a run


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

    def lost(self, runs: Collection[str]) -> set[str]:
        """Those of some runs that no process holds, or may be about to hold."""
        held = {*self.folder.glob(_HOLDS)} - {*self._free(), self._hold(STARTING)}
        others = set(map(_run_of, held))
        return set() if STARTING in others else set(runs) - others

    def temporary(self, run: str) -> Path:
        """A folder for temporary files, which goes with the run that is `holding` the store."""
        folder = self._hold(run).with_suffix(".files")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def under_way(self) -> list[str]:
        """The processes with a run that goes on or starts, each in words, with its command."""
        return self._named({*self.folder.glob(_HOLDS)} - {*self._free()})

    def ended(self) -> list[str]:
        """The processes whose run was killed and is not forgotten, as `under_way` has them."""
        return self._named(self._free())

    def _named(self, holds: Iterable[Path]) -> list[str]:
        """The processes of some locks, of which one may have several, each once."""
        processes = {hold.stem.rpartition("-")[2]: hold for hold in sorted(holds)}
        return [_holder(hold).replace(" has it since ", ", since ") for hold in processes.values()]

    def killed(self) -> set[str]:
        """The runs that were killed, until they are forgotten."""
        return set(map(_run_of, self._free())) - {"dvc", STARTING}

    def forget_killed(self) -> None:
        """Removes what killed runs have left, except their scratch."""
        for hold in self._free():
            self._release(hold)

    def oldest(self) -> float:
        """When the oldest run began that goes on, or was killed and is not forgotten.

        Returns:
            Seconds since the epoch; now if there is none.
        """
        began = [time()]
        for hold in self.folder.glob(_HOLDS):
            with suppress(FileNotFoundError):  # it has ended
                began.append(hold.stat().st_mtime)
        return min(began)

    def _free(self) -> Iterator[Path]:
        """The locks of killed processes; each is held until the next is asked for."""
        from filelock import Timeout

        for lock in self.folder.glob(_HOLDS):
            with suppress(Timeout), locked(lock, wait=False, sign=False):
                yield lock

    def _release(self, hold: Path) -> None:
        """Removes the files of a run that has ended; the caller has its lock."""
        shutil.rmtree(hold.with_suffix(".files"), ignore_errors=True)
        hold.unlink(missing_ok=True)

    def _hold(self, run: str) -> Path:
        return self.folder / f"{run}-{os.getpid()}_{TOKEN}.lock"
