"""Locks on files, which keep processes of one machine or of several apart.

The system releases a lock when the process that holds it ends in any way. The file says which
process has it, for people who wait.
"""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from retrain.runs import console

if TYPE_CHECKING:
    from filelock import BaseFileLock

# The errors of a file system that cannot lock.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
LONGEST_COMMAND = 200  # characters
QUIET_SECONDS = 2.0  # of a wait that is not told of
UNKNOWN = "another process has it"


@contextmanager
def locked(
    path: Path,
    *,
    wait: bool = True,
    purpose: str = "",
    sign: bool = True,
    reentrant: bool = False,
) -> Iterator["BaseFileLock"]:
    """Holds the lock of a file, which is created; its folder exists.

    A wait of more than two seconds is shown, with the process that has the lock.

    Args:
        path: The file. A process that holds the lock may delete it.
        wait: Whether to wait until another process releases it.
        purpose: The sentence for people about a wait, to which the process is added.
        sign: Whether the file gets the name of this process, in place of the last one's.
        reentrant: Whether this process may hold it several times at once, in any thread.

    Yields:
        The lock, which counts how often this process holds it.

    Raises:
        filelock.Timeout: Another process holds it, and `wait` is false.
        ValueError: The file system has no locks.
    """
    from filelock import FileLock, Timeout

    # A soft lock, a file that is there, would outlive a process that is killed.
    lock = FileLock(
        path,
        fallback_to_soft=False,
        on_acquired=_sign if sign else None,
        is_singleton=reentrant,
        thread_local=not reentrant,
    )
    try:
        lock.acquire(timeout=QUIET_SECONDS if wait else 0)
    except Timeout:
        if not wait:
            raise
        sentence = purpose or f"Waits for the lock {path.name}"
        console.say(escape(f"{sentence}: {holder_of(path)}."))
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
        yield lock
    finally:
        lock.release()


def holder_of(path: Path) -> str:
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
