"""Lists and links the files of the data, and says what their names mean: splits and classes."""

import os
import re
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from rich.markup import escape

SPLITS = ("train", "val", "test")  # in the order in which they are shown

# The names that the Hugging Face hub accepts for a split.
ALIASES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "validation", "valid", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(rf"(?<![a-z])(?:{'|'.join(ALIASES)})(?![a-z])")

# What file managers, archives, network drives and Python leave, in small letters.
OF_TOOLS = frozenset(
    {"#recycle", "$recycle.bin", "__macosx", "__pycache__", "@eadir", "desktop.ini", "icon\r"}
    | {"lost+found", "system volume information", "thumbs.db"}
)


def is_data(name: str) -> bool:
    """Whether a file or folder, by its name, is neither hidden nor left by a tool."""
    return not name.startswith(".") and name.lower() not in OF_TOOLS


def list_files(
    root: Path, above: str = "", hidden: bool = False, parents: Sequence[Path] = ()
) -> Iterator[tuple[str, int]]:
    """Every regular file below a folder, in order of the names.

    What is hidden or left by a tool is left out, and so are pipes, sockets and devices: to open one
    would wait, perhaps for ever. Links are followed, but for those to a folder above them, which
    would not end.

    Args:
        root: The folder.
        above: The prefix of its files' names.
        hidden: Whether these files and folders are listed too.
        parents: The real paths of the folders above it.

    Yields:
        Its name with `/`, and its size in bytes.

    Raises:
        ValueError: A link leads to nothing.
    """
    real, found = root.resolve(), {}
    if real in parents:
        return
    with os.scandir(root) as entries:
        for entry in entries:
            if hidden or is_data(entry.name):
                state = _state(entry, above)
                # A folder sorts where its files do: "a/1" comes after "a.b".
                found[entry.name + "/" * S_ISDIR(state.st_mode)] = state
    for name, state in sorted(found.items()):
        if name.endswith("/"):
            yield from list_files(root / name, above + name, hidden, (*parents, real))
        elif S_ISREG(state.st_mode):
            yield above + name, state.st_size


def _state(entry: "os.DirEntry[str]", above: str) -> os.stat_result:
    try:
        return entry.stat()
    except OSError:
        if not entry.is_symlink():
            raise
        raise ValueError(
            f"{above}{entry.name} is a link to {Path(entry.path).readlink()}, which is not there. "
            "Put the file there, or delete the link."
        ) from None


def some(names: Sequence[str]) -> str:
    """The first of many names, for a line of the console."""
    return escape(", ".join(names[:3]) + (" …" if len(names) > 3 else ""))


def link_file(source: Path | str, target: Path | str) -> None:
    """Puts a file at a second path too; it is copied where there are no hard links.

    Args:
        source: Must never be written to again, like the objects in DVC's cache.
        target: Must not be written to either; nothing is there yet. The folders above it are made.
    """
    folder = Path(target).parent
    if not folder.is_dir():  # a third of the time of `mkdir`
        folder.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def split_of(name: str) -> str | None:
    """The split that a word in the name of a file means, else one in that of the nearest folder."""
    for part in reversed(name.lower().split("/")):
        if word := _WORD.search(part):
            return ALIASES[word[0]]
    return None


def label_of(value: Any) -> str | None:
    """A class as text, without space around it and in one form of Unicode; None for none."""
    if value is None or value != value:  # NaN
        return None
    return unicodedata.normalize("NFC", str(value).strip()) or None
