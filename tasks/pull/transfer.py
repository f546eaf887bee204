"""Names and links files from a source of data to a step's folder."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

THREADS = 16  # they wait for disks and networks
MAX_NAME = 255  # bytes, on the usual file systems


def inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder.

    Raises:
        ValueError: The name, which came from elsewhere, leads outside the folder, or is too long
            for a file system.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"The data has a file with the name {name!r}, which leads out of its folder. Nothing "
            "is taken."
        )
    if max((len(os.fsencode(part)) for part in path.parts), default=0) > MAX_NAME:
        raise ValueError(
            f"The data has a file whose name is too long, of more than {MAX_NAME} bytes: "
            f"{name[:80]}… Rename it."
        )
    return folder / path


def each(function: Callable[[T], R], items: Iterable[T], threads: int = THREADS) -> list[R]:
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


def link_file(source: Path, target: Path) -> None:
    """Links a file to a second path, in place of any file there; copies it without links.

    Args:
        source: Must never be written to, like the objects in DVC's cache.
        target: Must not be written to either. The folders above it are made.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
