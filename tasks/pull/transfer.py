"""Helps the sources of data: safe paths, calls in threads, and errors of storage libraries."""

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TypeVar

from retrain.runs import console

T = TypeVar("T")
R = TypeVar("R")

THREADS = 16  # they wait for disks and networks
LOOK_SECONDS = 1.0  # between two looks at what has arrived
DISK = (errno.EDQUOT, errno.EFBIG, errno.ENOSPC)  # does not take any more


def inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder.

    Raises:
        ValueError: The name, which came from elsewhere, leads outside the folder.
    """
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(
            f"The data has a file with the name {name!r}, which leads out of its folder. Nothing "
            "is taken."
        )
    return folder / name


def map_in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Calls a function with each item, in threads; the results in the items' order."""
    with ThreadPool(THREADS) as pool:  # which takes many small ones in chunks
        return pool.map(function, items)


def in_time(seconds: float, function: Callable[[], R]) -> R | None:
    """What a function returns; None if it fails, or takes longer than some seconds."""
    results: list[R] = []

    def call() -> None:
        with suppress(Exception):
            results.append(function())

    thread = Thread(target=call, daemon=True)  # it may hang, and must not keep the process
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


@contextmanager
def arriving(folder: Path, total: int | None) -> Iterator[None]:
    """Shows how many bytes arrive in a folder while the block has a library download into it.

    Args:
        folder: The folder, with whatever is in it.
        total: The bytes that are to arrive; None if they are not known.
    """
    with (
        console.counted("downloading", total, "bytes") as show,
        console.telling_meanwhile(_watch, folder, show),
    ):
        yield


def _watch(folder: Path, show: Callable[[int], None], over: Event) -> None:
    before, pause = _bytes_below(folder), LOOK_SECONDS
    while not over.wait(pause):
        began, there = monotonic(), _bytes_below(folder)
        show(there - before)
        before, pause = there, max(LOOK_SECONDS, 10 * (monotonic() - began))


def _bytes_below(folder: Path) -> int:
    """The bytes of all files below a folder, some of which may come and go."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


@contextmanager
def reaching(fault: str) -> Iterator[None]:
    """Turns the errors of storage libraries into one, after which a retry may help.

    Those of the disk that is written to stay as they are.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        if getattr(error, "errno", None) in DISK:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConnectionError(f"{fault} ({reason})") from error
