"""What a person sees of a run: a line per step, a live bar in long steps, and the verdict.

On the command line, `on_screen` reserves the screen for this module, and the output of the
libraries goes to a log file. The same lines are log records of the logger `retrain`; a Prefect
worker shows only these.
"""

import errno
import io
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from threading import Lock
from time import monotonic
from typing import Any, TextIO

from rich.box import SIMPLE
from rich.console import Console, JustifyMethod
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

logger = logging.getLogger("retrain")
logger.setLevel(logging.INFO)  # else it drops these records before Prefect gets them

PLAIN_LINE_SECONDS = 5.0
FULL = (errno.ENOSPC, errno.EDQUOT)
UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
WIDTH = 110  # without a terminal, so that tables in a CI log are not cut at 80


class _Screen:
    """The screen of this process."""

    console: Console | None = None


# Shows the fraction that is done, None if it is not known, and a text.
Show = Callable[[float | None, str], None]
# The name of the progress that is shown in this context, and the function that shows it.
_shown: ContextVar[tuple[str, Show] | None] = ContextVar("shown", default=None)


@contextmanager
def on_screen(log: Path, *, to_stderr: bool) -> Iterator[None]:
    """Reserves the screen for this module and sends all other output of the process to a file.

    The file descriptors are redirected, which also covers C libraries and child processes.

    Args:
        log: The file for the other output; created with its folder.
        to_stderr: Write to standard error, because standard output is reserved for a result.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # To standard error, as Prefect's own handler, if that is there already.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with ExitStack() as stack:
        screen = stack.enter_context(open_output(os.dup(2 if to_stderr else 1)))
        Output.log = log
        stack.callback(setattr, Output, "log", None)
        file = stack.enter_context(log.open("ab"))
        for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            kept = os.dup(fd)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, fd)
            stack.callback(stream.flush)
            os.dup2(file.fileno(), fd)
        stack.enter_context(shown_on(screen))
        yield


@contextmanager
def shown_on(stream: TextIO) -> Iterator[None]:
    """Prints all lines of this module to a stream, such as standard output."""
    _Screen.console = Console(file=stream, width=None if stream.isatty() else WIDTH)
    try:
        yield
    finally:
        _Screen.console = None


def say(line: str | Table) -> None:
    """Shows a line, with its times in the local zone and as a log record too, or a table."""
    screen = _Screen.console
    if isinstance(line, str):
        line = with_local_times(line)
        if line and (screen is None or Output.log):  # else the records have the screen
            logger.info(Text.from_markup(line).plain.strip())
        if screen and is_live():  # a path is not broken in a narrow terminal: it can be copied
            line = wrapped(line, width=screen.width)
    if screen:
        screen.print(line, highlight=False, soft_wrap=isinstance(line, str))


def say_step(step: str, cached: bool, why: str, seconds: float) -> None:
    """Shows the line of a step that has ended."""
    say(escape(f"{step:<20} {'cached' if cached else 'ran':<7} {seconds:6.1f} s  {why}"))


@contextmanager
def progress(name: str) -> Iterator[Show]:
    """Shows that something goes on: a live bar in a terminal, else a line every few seconds.

    Inside another block, it is a part of what that one shows.

    Args:
        name: The name of the step, or of the part of one.

    Yields:
        A function to call with the fraction that is done, None if it is not known, and a text.
    """
    if outer := _shown.get():
        outer_name, show_outer = outer
        part = "" if name == outer_name else f"{name}  "
        yield lambda fraction, text: show_outer(fraction, part + text)
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn(name, markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=_Screen.console,
        transient=True,
        redirect_stdout=False,  # by itself, Rich would print all of `sys.stdout` there too
        redirect_stderr=False,
        disable=not is_live(),
    )
    task, last = bar.add_task("", total=None), monotonic()
    context = copy_context()  # of the run: Prefect needs it for lines from the training's thread

    def show(fraction: float | None, text: str) -> None:
        nonlocal last
        total = None if fraction is None else 1.0
        # Of one that is complete, Rich would stop the clock, and another part may follow.
        bar.update(task, total=total, completed=min(fraction or 0.0, 0.999), description=text)
        if bar.disable and monotonic() - last >= PLAIN_LINE_SECONDS:
            last = monotonic()
            # Two threads cannot be in the same context.
            context.copy().run(say, escape(f"  {name}  {text}"))

    token = _shown.set((name, show))
    try:
        with bar:
            yield show
    finally:
        _shown.reset(token)


def is_live() -> bool:
    """Whether `progress` draws a live bar, and not lines."""
    screen = _Screen.console
    return screen is not None and screen.is_terminal and not screen.is_dumb_terminal


@contextmanager
def counted(name: str, total: int | None, unit: str = "images") -> Iterator[Callable[[int], None]]:
    """Shows how many images, or bytes, are done.

    Args:
        name: The name of the step, or of the part of one.
        total: The number of all; None if it is not known.
        unit: `images` or `bytes`.

    Yields:
        A function to call with the number of those that have been done since the last call; from
        any thread.
    """
    done, lock = 0, Lock()
    amount = decimal if unit == "bytes" else "{:,}".format

    def show(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            count_text = f"{amount(done)} of {amount(total)}" if total else amount(done)
            update(done / total if total else None, count_text)

    with progress(name) as update:
        yield show


def say_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Shows rows under column names; all columns but the first are numbers."""
    say(_table(columns, rows, "right"))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints rows under column names; None is an empty cell."""
    with shown_on(sys.stdout):
        say(_table(columns, rows, "left"))


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], justify: JustifyMethod) -> Table:
    """A table; None is an empty cell, and a column without a value is left out."""
    cells = [["" if cell is None else escape(str(cell)) for cell in row] for row in rows]
    filled = [place for place in range(len(columns)) if any(row[place] for row in cells)]
    names = [Column(columns[place], justify=justify if place else "left") for place in filled]
    drawn = Table(*names, box=SIMPLE, pad_edge=False)
    for row in cells:
        drawn.add_row(*(row[place] for place in filled))
    return drawn


def say_places(document: Mapping[str, Any]) -> None:
    """Shows where to find the results of a run, and how long it took."""
    if not document["data"]["tracked"]:
        path = document["data"]["path"]
        say(escape(f"The data at {path} is not under DVC; this run keeps a copy of it."))
    say("")
    for name, place in document["look"].items():
        say(escape(f"{name:<10} {place}"))
    say(f"{'took':<10} {document['took']:.1f} s")


def number(value: float | None) -> str:
    """A metric as text: a count as it is, other values with four decimals."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def print_steps(document: Mapping[str, Any]) -> None:
    """Prints why each step of a run ran or was taken from the cache."""
    with shown_on(sys.stdout):
        for step in document["steps"]:
            say_step(step["step"], step["cached"], step["why"], step["seconds"])
        if "error" in document:
            say(escape(f"It failed: {document['error']}"))


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
