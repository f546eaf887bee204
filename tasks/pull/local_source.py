"""Data on this machine that is not under DVC."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

from retrain.errors import UsageError
from retrain.runs import console
from retrain.step import digest_of
from tasks.pull.transfer import each, walk_folder

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

    def state(self) -> str:
        """Another one after a file was written to, replaced, added or removed; no file is read."""
        digest = hashlib.sha256()
        for name, path in self.files.items():
            now = path.stat()
            seen = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
            digest.update(os.fsencode(f"{name}\0{seen}\0"))
        digest.update(os.fsencode("\0".join(self.empty)))
        return digest.hexdigest()

    def digest(self, copy: Path | None = None) -> str:
        """SHA-256 (hex) over the names and the bytes of the files, and the empty folders' names.

        Args:
            copy: A folder where all of it is written to, as it is read.
        """
        if copy:
            for name in self.empty:
                (copy / name).mkdir(parents=True)
        size = sum(path.stat().st_size for path in self.files.values())
        with console.byte_progress("copying" if copy else "reading", size) as show:
            digests = each(
                lambda name: _read(self.files[name], copy and copy / name, show), self.files
            )
        named = dict(zip(self.files, digests, strict=True))
        return digest_of(named | {f"{name}/": None for name in self.empty})


# The digests of what this process has read, by its state: a run asks for the version of its data
# more than once.
_digests: dict[str, str] = {}


@dataclass(frozen=True)
class LocalSource:
    """A folder or a file of this machine, outside `data/`; hidden files are left out.

    Only its content identifies its version, so every run reads all of it once before it starts (on
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
        state = found.state()
        if state not in _digests:
            _digests[state] = found.digest()
        return _digests[state]

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Copies the files, whose bytes are measured on the way; says what it leaves out."""
        found = list_data(self.path)
        if found.ignored:
            console.say(escape(_describe_ignored(found.ignored)))
        if found.digest(folder) != digest:
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


PIECE = 1 << 20  # bytes per read, of which a person is told


def _read(path: Path, copy: Path | None, show: Callable[[int], None]) -> str:
    """SHA-256 (hex) of a file, which is also written to a copy; tells of each piece's bytes."""
    digest = hashlib.sha256()
    with ExitStack() as opened:
        file = opened.enter_context(path.open("rb", buffering=0))
        if copy:
            copy.parent.mkdir(parents=True, exist_ok=True)
            target = opened.enter_context(copy.open("wb"))
        while piece := file.read(PIECE):
            digest.update(piece)
            if copy:
                target.write(piece)
            show(len(piece))
    return digest.hexdigest()
