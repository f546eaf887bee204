"""Shows a run to a person: a line per step, a live bar in long steps, and the verdict.

On the command line, `on_screen` reserves the screen for this module, and the output of the
libraries goes to a log file. The same lines are log records of the logger `retrain`; a Prefect
worker shows only these.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, TextIO

from rich.box import SIMPLE
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress as Bar,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from retrain import messages
from retrain.messages import with_local_times, wrapped

logger = logging.getLogger("retrain")
logger.setLevel(logging.INFO)  # else it drops these records before Prefect gets them

PLAIN_LINE_SECONDS = 5.0
DRAWN_SECONDS = 0.1  # between two updates of a count, which may be a million small files
WIDTH = 110  # without a terminal, so that tables in a CI log are not cut at 80


@dataclass(frozen=True)
class Progress:
    """The progress of a training.

    Attributes:
        epoch: The current epoch, from 1.
        epochs: The number of epochs.
        fraction: The fraction of all optimizer steps that is done, 0 to 1.
        images_per_second: The recent speed of training, all workers together.
        loss: The training loss, a moving mean; None if it is not known.
        seconds_left: The time until the end of the last epoch.
    """

    epoch: int
    epochs: int
    fraction: float
    images_per_second: float
    loss: float | None
    seconds_left: float

    def __str__(self) -> str:
        loss = "" if self.loss is None else f"loss {self.loss:.3f}  "
        return (
            f"epoch {self.epoch}/{self.epochs}  {loss}"
            f"{self.images_per_second:,.0f} images/s  {self.seconds_left:.0f} s left"
        )


@dataclass
class _Screen:
    """The screen, when this process has one, and the file that has all other output."""

    console: Console | None = None
    log: Path | None = None


_screen = _Screen()

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
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {fd: os.dup(fd) for fd in (1, 2)}
    screen = messages.open_output(os.dup(2 if to_stderr else 1))
    file = messages.open_output(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666))
    for fd in saved:
        os.dup2(file.fileno(), fd)
    handler = logging.StreamHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    _screen.log, messages.Output.leads_to_log = log, True
    try:
        with shown_on(screen):
            yield
    finally:
        logging.getLogger().removeHandler(handler)
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, original in saved.items():
            os.dup2(original, fd)
            os.close(original)
        screen.close()
        file.close()
        _screen.log, messages.Output.leads_to_log = None, False


def log_file() -> Path | None:
    """The file with the other output of this process; None where it is not sent to a file."""
    return _screen.log


@contextmanager
def shown_on(stream: TextIO) -> Iterator[None]:
    """Prints all lines of this module to a stream, such as standard output."""
    is_plain = os.environ.get("TERM") in ("dumb", "unknown")  # it has no live bar
    width = None if stream.isatty() else WIDTH
    _screen.console = Console(file=stream, width=width, force_terminal=False if is_plain else None)
    # Prefect's, by which a worker shows these lines; it would show them a second time.
    root, shown = logging.getLogger(), (sys.stderr, sys.__stderr__)
    handlers = [each for each in root.handlers if getattr(each, "stream", None) in shown]
    for handler in handlers:
        root.removeHandler(handler)
    try:
        yield
    finally:
        _screen.console = None
        for handler in handlers:
            root.addHandler(handler)


def say(line: str | Table) -> None:
    """Shows a line, with its times in the local zone and as a log record too, or a table."""
    if isinstance(line, str):
        line = with_local_times(line)
    if isinstance(line, str) and line:
        logger.info(Text.from_markup(line).plain.strip())
    if _screen.console:
        # A path is not broken in a narrow terminal, so that it can be copied.
        if isinstance(line, str) and is_live():
            line = wrapped(line, width=_screen.console.width)
        _screen.console.print(line, highlight=False, soft_wrap=isinstance(line, str))


def ended(step: str, cached: bool, why: str, seconds: float) -> None:
    """Shows the line of a step that has ended."""
    say(escape(f"{step:<20} {'cached' if cached else 'ran':<7} {seconds:6.1f} s  {why}"))


@contextmanager
def telling_meanwhile(tell: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Runs a function in a thread beside the block, in the context of the run.

    In that context, Prefect assigns the lines to the run.

    Args:
        tell: The function. It returns when the `Event` is set that is its last argument.
        arguments: The other arguments of the function.
    """
    over = Event()
    thread = Thread(target=copy_context().run, args=(tell, *arguments, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


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
    with _live_bar(name) if is_live() else nullcontext(_plain_lines(name)) as show:
        token = _shown.set((name, show))
        try:
            yield show
        finally:
            _shown.reset(token)


def is_live() -> bool:
    """Whether `progress` draws a live bar, and not lines."""
    return _screen.console is not None and _screen.console.is_terminal


@contextmanager
def _live_bar(name: str) -> Iterator[Show]:
    bar = Bar(
        SpinnerColumn(),
        TextColumn(name, markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=_screen.console,
        transient=True,
        redirect_stdout=False,  # by itself, Rich would print all of `sys.stdout` there too
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task("", total=None)

        def show(fraction: float | None, text: str) -> None:
            total = None if fraction is None else 1.0
            # Of one that is complete, Rich would stop the clock, and another part may follow.
            bar.update(task, total=total, completed=min(fraction or 0.0, 0.999), description=text)

        yield show


def _plain_lines(name: str) -> Show:
    last = monotonic()
    context = copy_context()  # of the run: Prefect needs it for lines from the training's thread

    def show(_: float | None, text: str) -> None:
        nonlocal last
        if monotonic() - last >= PLAIN_LINE_SECONDS:
            last = monotonic()
            # Two threads cannot be in the same context.
            context.copy().run(say, escape(f"  {name}  {text}"))

    return show


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
    done, drawn, lock = 0, 0.0, Lock()
    amount = decimal if unit == "bytes" else "{:,}".format

    def show(count: int) -> None:
        nonlocal done, drawn
        with lock:
            done += count
            if done != total and monotonic() - drawn < DRAWN_SECONDS:
                return
            drawn = monotonic()
        count_text = f"{amount(done)} of {amount(total)}" if total else amount(done)
        update(done / total if total else None, count_text)

    with progress(name) as update:
        yield show


def say_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Shows rows under column names; all columns but the first are numbers."""
    drawn = _table(columns, rows)
    for column in drawn.columns[1:]:
        column.justify = "right"
    say(drawn)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table; None is an empty cell, and a column without a value is left out."""
    cells = [["" if cell is None else escape(str(cell)) for cell in row] for row in rows]
    filled = [place for place in range(len(columns)) if any(row[place] for row in cells)]
    drawn = Table(*(columns[place] for place in filled), box=SIMPLE, pad_edge=False)
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
            ended(step["step"], step["cached"], step["why"], step["seconds"])
        if "error" in document:
            say(escape(f"It failed: {document['error']}"))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints rows under column names; None is an empty cell."""
    width = None if sys.stdout.isatty() else WIDTH
    Console(width=width).print(_table(columns, rows), highlight=False)
