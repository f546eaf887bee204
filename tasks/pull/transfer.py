"""Copies and links files from a source of data to a step's folder."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypeVar

from retrain.redaction import redact

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
        raise ValueError(f"The data has a file with the name {name!r}, which is not taken.")
    return folder / path


def each(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Calls a function with each item, in threads; the results in the items' order."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, items))


@contextmanager
def reaching(fault: str) -> Iterator[None]:
    """Turns the errors of storage libraries into one, after which a retry may help."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        reason = redact(" ".join(str(error).split())) or type(error).__name__
        raise ConnectionError(f"{fault} ({reason})") from error


def copy_file(source: Path, target: Path) -> None:
    """Copies a file's content, making the folders above the target."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def link_file(source: Path, target: Path) -> None:
    """Links a file to a second path; copies it only where links are impossible.

    It tries a reflink, a hard link and a copy, and replaces an existing file.

    Args:
        source: Must never be written to, like the objects in DVC's cache.
        target: Must not be written to either. The folders above it are made.
    """
    from dvc_objects.fs.system import hardlink, reflink

    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    for link in (reflink, hardlink):
        try:
            link(str(source), str(target))
        except OSError:  # another file system, or one without such links
            continue
        return
    shutil.copyfile(source, target)
