"""What people are told: sentences about errors, and the standard streams that they go to."""

import errno
import io
import os
import re
import shutil
import sys
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import Any, TextIO

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
    causes = "".join(traceback.format_exception(error))
    return any(os.strerror(code) in causes for code in FULL) or least_space()[0] < MIN_BYTES


def message_of(error: BaseException) -> str:
    """The message of an error for a person.

    A full disk is named, whatever the error says of it. The text of a library is
    cut to a few lines; the traceback in the log has all of it.
    """
    text = str(error).strip() or type(error).__name__
    if isinstance(error, UsageError):
        return text
    # A `ValueError` is the project's own, or about a value that the user gave.
    is_own = isinstance(error, ValueError)
    if not is_own and lacks_space(error):
        space, folder = least_space()
        remaining = f"{space / 1e6:.0f} MB are left there"
        return f"The disk is full: make room in {folder} ({remaining}), or use another disk."
    limit = MAX_LINES if is_own else MAX_LIBRARY_LINES
    lines = [line for line in text.splitlines() if line.strip()]
    shown = [line if len(line) <= MAX_WIDTH else f"{line[:MAX_WIDTH]} …" for line in lines[:limit]]
    if len(lines) > limit:
        shown.append(f"… ({len(lines) - limit} more lines)")
    return "\n".join(shown)


def least_space() -> tuple[int, Path]:
    """The free bytes of the fullest of the folders that a run writes to, and that folder."""
    temporary = os.environ.get("TMPDIR", "/tmp")
    folders = [Path(temporary), Path(os.environ.get("RAY_TMPDIR", temporary)), Path.cwd()]
    folders.append(Path("/dev/shm"))  # where Python keeps the locks of its processes
    with suppress(UsageError, OSError):
        project = find_project()
        folders += [project.store, project.state, project.root / "mlruns"]
    return min((shutil.disk_usage(folder).free, folder) for folder in folders if folder.exists())


_NOBODY_READS = (errno.EPIPE, errno.EIO)  # the pipe is closed; the terminal is gone


class Output(io.FileIO):
    """A file descriptor that drops what nobody reads any more, where others fail.

    Attributes:
        log: The file that all of the process's output goes to now; None if it goes to no file. What
            its disk has no room for is dropped, too: the error that a person has to be told is the
            one of the run.
    """

    log: Path | None = None

    def write(self, data: Any, /) -> int:
        """Writes the bytes, or drops them; returns how many they are."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (_NOBODY_READS + FULL if Output.log else _NOBODY_READS):
                raise
            return memoryview(data).nbytes


def open_output(fd: int, *, close: bool = True) -> TextIO:
    """Opens a file descriptor for text. Writing does not fail when its reader has ended.

    Args:
        fd: The file descriptor.
        close: Whether it is closed with the file.
    """
    raw = Output(fd, "w", closefd=close)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=raw.isatty(),
    )


def prepare() -> None:
    """Has the standard streams of this process drop what nobody reads any more.

    So `retrain history vit | head` ends without an error.
    """
    if sys.stdout is sys.__stdout__:
        sys.stdout = open_output(1, close=False)
    if sys.stderr is sys.__stderr__:
        sys.stderr = open_output(2, close=False)
