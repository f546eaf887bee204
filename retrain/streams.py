"""The standard streams of a process, for runs that last longer than the reader of their output."""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NOBODY_READS = (errno.EPIPE, errno.EIO)  # the pipe is closed; the terminal is gone
_FULL = (errno.ENOSPC, errno.EDQUOT)

_logs: set[int] = set()  # the file descriptors that lead to a log file now


class _Output(io.FileIO):
    """A file descriptor that drops what nobody reads any more, where others fail.

    What goes to a log file is dropped when its disk is full, too: the error that a person has to be
    told is the one of the run.
    """

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            lost = error.errno in _FULL and self.fileno() in _logs
            if error.errno not in _NOBODY_READS and not lost:
                raise
            return memoryview(data).nbytes


@contextmanager
def leading_to_a_log(*fds: int) -> Iterator[None]:
    """Takes file descriptors as leading to a log file, while the block runs."""
    _logs.update(fds)
    try:
        yield
    finally:
        _logs.difference_update(fds)


def open_output(fd: int, *, close: bool = True) -> TextIO:
    """Opens a file descriptor for text. Writing does not fail when its reader has ended.

    Args:
        fd: The file descriptor.
        close: Whether it is closed with the file.
    """
    raw = _Output(fd, "w", closefd=close)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=raw.isatty(),
    )


def prepare() -> None:
    """Makes the standard streams of this process usable, whatever state they were passed on in.

    A closed one leads to the null device; otherwise the next file that is opened, such as a
    database, would get its number and its output. Writing does not fail when the reader has ended,
    as in `retrain history vit | head`.
    """
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        sys.stdout = open_output(1, close=False)
    if sys.stderr is sys.__stderr__:
        sys.stderr = open_output(2, close=False)
