"""Lists and links the files of the data."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


def list_files(
    root: Path, above: str = "", hidden: bool = False, parents: Sequence[Path] = ()
) -> Iterator[tuple[str, int]]:
    """Every regular file below a folder, in order of the names.

    Links are followed, but for those to a folder above them, which would not end. Pipes, sockets
    and devices are left out: to open one would wait, perhaps for ever.

    Args:
        root: The folder.
        above: The prefix of its files' names.
        hidden: Whether hidden files and folders are listed too.
        parents: The real paths of the folders above it.

    Yields:
        Its name with `/`, and its size in bytes.

    Raises:
        ValueError: A link leads to nothing.
    """
    real = root.resolve()
    if real in parents:
        return
    with os.scandir(root) as entries:
        # A folder sorts where its files do: "a/1" comes after "a.b".
        named = {
            entry.name + "/" * _is_folder(entry): entry
            for entry in entries
            if hidden or not entry.name.startswith(".")
        }
    for name, entry in sorted(named.items()):
        if name.endswith("/"):
            yield from list_files(root / name, above + name, hidden, (*parents, real))
        elif _is_file(entry):
            yield above + name, entry.stat().st_size
        elif entry.is_symlink() and not Path(entry.path).exists():
            raise ValueError(
                f"{above}{name} is a link to {Path(entry.path).readlink()}, which is not there. "
                "Put the file there, or delete the link."
            )


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()


def _is_file(entry: "os.DirEntry[str]") -> bool:
    return Path(entry.path).is_file() if entry.is_symlink() else entry.is_file()


def check_names(names: Iterable[str]) -> None:
    """Refuses files whose names are not UTF-8, and which no table can have therefore.

    Raises:
        ValueError: Such a name.
    """
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"The name {name!a} is not UTF-8. Rename the file or folder."
            ) from None


def link_file(source: Path | str, target: Path | str) -> None:
    """Puts a file at a second path too; it is copied where there are no hard links.

    Args:
        source: Must never be written to again, like the objects in DVC's cache.
        target: Must not be written to either; nothing is there yet. The folders above it are made.
    """
    try:
        _link(source, target)
    except FileNotFoundError:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        _link(source, target)


def _link(source: Path | str, target: Path | str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
