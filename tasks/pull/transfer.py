"""Helps the sources of data: safe paths, calls in threads, and errors of storage libraries."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

THREADS = 16  # they wait for disks and networks


def inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder.

    Raises:
        ValueError: The name, which came from elsewhere, leads outside the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"The data has a file with the name {name!r}, which leads out of its folder. Nothing "
            "is taken."
        )
    return folder / path


def map_in_threads(
    function: Callable[[T], R], items: Iterable[T], threads: int = THREADS
) -> list[R]:
    """Calls a function with each item, in threads; the results in the items' order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


@contextmanager
def reaching(fault: str) -> Iterator[None]:
    """Turns the errors of storage libraries into one, after which a retry may help."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConnectionError(f"{fault} ({reason})") from error
