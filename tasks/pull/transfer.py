"""Lists, copies and links files from a source of data to a step's folder."""

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


def walk_folder(
    root: Path, ignored: Callable[[str], None], hidden: bool = False
) -> Iterator[tuple[Path, list[str]]]:
    """Lists a folder of this machine and the folders below it. Links are followed.

    Only regular files are listed: to open a pipe, a socket or a device would wait, perhaps for
    ever. A link that leads to a folder above it is not followed, because that would not end.

    Args:
        root: The folder.
        ignored: Called with the path of each entry that is left out, relative to the root.
        hidden: Whether hidden files and folders are listed too.

    Yields:
        A folder, and the names of the files in it.
    """
    # Of each folder that is still to be listed: its identity and those of the folders above it.
    lineages: dict[Path, tuple[tuple[int, int], ...]] = {root: (_identity(root),)}
    for place, folders, names in os.walk(root, followlinks=True):
        folder = Path(place)
        lineage = lineages.pop(folder)
        below = []
        for name in (each for each in sorted(folders) if hidden or not each.startswith(".")):
            identity = _identity(folder / name)
            if identity in lineage:
                ignored((folder / name).relative_to(root).as_posix())
            else:
                lineages[folder / name] = (*lineage, identity)
                below.append(name)
        folders[:] = below
        files = []
        for name in (each for each in sorted(names) if hidden or not each.startswith(".")):
            if (folder / name).is_file():
                files.append(name)
            else:
                ignored((folder / name).relative_to(root).as_posix())
        yield folder, files


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


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
