"""Locks on files, which keep processes of one machine or of several apart.

The system releases a lock when the process that holds it ends in any way.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The errors of a file system that cannot lock.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds the lock of a file, which is created; its folder exists.

    Args:
        path: The file. A process that holds the lock may write to it, and delete it.
        wait: Whether to wait until another process releases it.

    Raises:
        filelock.Timeout: Another process holds it, and `wait` is false.
        ValueError: The file system has no locks.
    """
    from filelock import FileLock

    # A soft lock, a file that is there, would outlive a process that is killed.
    lock = FileLock(path, timeout=-1 if wait else 0, fallback_to_soft=False)
    try:
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
