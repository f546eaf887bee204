"""Helps the sources of data: safe paths, calls in threads, and errors of storage libraries."""

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

THREADS = 16  # they wait for disks and networks
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
