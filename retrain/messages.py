"""What people are told: sentences about errors, and the standard streams that they go to."""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill

from retrain.errors import UsageError
from retrain.project import find_project

MAX_LINES = 16
MAX_LIBRARY_LINES = 3  # of an error that is not about what the user has given
MAX_WIDTH = 400
MIN_BYTES = 1_000_000  # with less, a database cannot be written

FULL = (errno.ENOSPC, errno.EDQUOT)
UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")


def local_time(time: str) -> str:
    """A time (ISO 8601) in the time zone of this machine: `2026-11-30 04:00 CET`."""
    return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M %Z")


def with_local_times(text: str) -> str:
    """A text in which each time in UTC (ISO 8601) is one in the time zone of this machine."""
    return UTC_TIME.sub(lambda found: local_time(found[0]), text)


def ago(time: str) -> str:
    """How long ago a time (ISO 8601) was: `3 days ago`."""
    from humanize import naturaltime

    return naturaltime(datetime.now(UTC) - datetime.fromisoformat(time))


def wrapped(text: str, indent: str = "", width: int | None = None) -> str:
    """A text whose lines end between words; a longer word, such as a path, stays whole.

    Args:
        text: The text.
        indent: What each line but the first begins with.
        width: The width of a line; None for that of the terminal that standard output is, and
            without a terminal the text stays as it is.
    """
    if width is None and not sys.stdout.isatty():
        return text
    columns = width or shutil.get_terminal_size().columns
    return "\n".join(
        fill(
            line,
            columns,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def lacks_space(error: BaseException) -> bool:
    """Whether a disk is full, which a library, a database or a server may hide."""
    is_full = any(getattr(cause, "errno", None) in FULL for cause in _causes(error))
    return is_full or least_space()[0] < MIN_BYTES


def message_of(error: BaseException) -> str:
    """The message of an error for a person.

    A full disk is named, whatever the error says of it. The text of a library is
    cut to a few lines; the traceback in the log has all of it.
    """
    if isinstance(
        error, ValueError
    ):  # it is the project's own, or about a value that the user gave
        return _shortened(error)
    if lacks_space(error):
        space, folder = least_space()
        remaining = f"{space / 1e6:.0f} MB are left there"
        return f"The disk is full: make room in {folder} ({remaining}), or use another disk."
    return _shortened(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and the errors that led to it; libraries may make a circle of them."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def least_space() -> tuple[int, Path]:
    """The free bytes of the fullest of the folders that a run writes to, and that folder."""
    temporary = os.environ.get("TMPDIR", "/tmp")
    folders = [Path(temporary), Path(os.environ.get("RAY_TMPDIR", temporary)), Path.cwd()]
    try:
        project = find_project()
        folders += [project.store, project.state, project.root / "mlruns"]
    except (UsageError, OSError):
        pass
    return min((shutil.disk_usage(folder).free, folder) for folder in folders if folder.exists())


def _shortened(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, UsageError):
        return text
    limit = MAX_LINES if isinstance(error, ValueError) else MAX_LIBRARY_LINES
    lines = [line for line in text.splitlines() if line.strip()]
    shown = [line if len(line) <= MAX_WIDTH else f"{line[:MAX_WIDTH]} …" for line in lines[:limit]]
    if len(lines) > limit:
        shown.append(f"… ({len(lines) - limit} more lines)")
    return "\n".join(shown)


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
