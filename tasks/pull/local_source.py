"""Data on this machine that is not under DVC."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

from retrain.errors import UsageError
from retrain.runs import console
from retrain.step import digest_of
from tasks.pull.transfer import copy_file, each, walk_folder

EXAMPLES = 5


@dataclass(frozen=True)
class Listing:
    """What is in a folder.

    Attributes:
        files: The regular files that are not hidden, by their names in it.
        empty: The folders without a file or a folder.
        ignored: Pipes, sockets, devices, and links that lead nowhere or in circles.
    """

    files: Mapping[str, Path]
    empty: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def digest(self) -> str:
        """SHA-256 (hex) over the names and the bytes of the files, and the empty folders' names."""
        digests = zip(self.files, each(_sha256, self.files.values()), strict=True)
        return digest_of(dict(digests) | {f"{name}/": None for name in self.empty})


@dataclass(frozen=True)
class LocalSource:
    """A folder or a file of this machine, outside `data/`; hidden files are left out.

    Only its content identifies its version, so every run reads all of it before it starts (on
    two cores and a local disk 0.5 GB, or 20,000 small files, a second), and `pull` copies it. If
    that is too slow, put the data under DVC, where a run reads one line.

    Attributes:
        path: An absolute path.
    """

    path: Path

    def digest(self) -> str:
        """SHA-256 (hex) over the names and the bytes of the files."""
        found = list_data(self.path)
        if not found.files:
            raise UsageError(
                f"data.path: {self.path} {_why_nothing(self.path, found)}. (For a data set on the "
                "Hugging Face hub, set data.format to hub.)"
            )
        return found.digest()

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Copies the files, and says what it leaves out."""
        found = list_data(self.path)
        if found.ignored:
            console.say(escape(_describe_ignored(found.ignored)))
        for name in found.empty:
            (folder / name).mkdir(parents=True)
        each(lambda name: copy_file(found.files[name], folder / name), found.files)
        if list_data(folder).digest() != digest:
            raise ValueError(f"{self.path} has changed since the run started: run it again.")


def list_data(path: Path) -> Listing:
    """What is in a folder; or the one file."""
    if path.is_file():
        return Listing({path.name: path})
    if not path.is_dir():
        return Listing({})
    files: dict[str, Path] = {}
    empty: list[str] = []
    ignored: list[str] = []
    for folder, names in walk_folder(path, ignored.append):
        files |= {(folder / name).relative_to(path).as_posix(): folder / name for name in names}
        if not names and not any(folder.iterdir()):
            empty.append(folder.relative_to(path).as_posix())
    return Listing(dict(sorted(files.items())), tuple(sorted(empty)), tuple(sorted(ignored)))


def _why_nothing(path: Path, found: Listing) -> str:
    if found.ignored or (path.exists() and not path.is_dir()):
        return "has no regular file"
    return "is empty" if path.exists() else "does not exist"


def _describe_ignored(ignored: Sequence[str]) -> str:
    more = len(ignored) - EXAMPLES
    return (
        f"Left out of the data, because they are no regular files or lead in circles: "
        f"{', '.join(ignored[:EXAMPLES])}{f', and {more:,} more' if more > 0 else ''}"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
