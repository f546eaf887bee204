"""Data on this machine that is not under DVC."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retrain.errors import UsageError
from retrain.step import digest_of
from tasks.pull.transfer import copy_file, each


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
        files = _list_files(self.path)
        if not files:
            fault = "is empty" if self.path.exists() else "does not exist"
            raise UsageError(
                f"data.path: {self.path} {fault}. (For a data set on the Hugging Face hub, set "
                "data.format to hub.)"
            )
        return _digest_files(files)

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Copies the files."""
        files = _list_files(self.path)
        each(lambda name: copy_file(files[name], folder / name), files)
        if _digest_files(_list_files(folder)) != digest:
            raise ValueError(f"{self.path} has changed since the run started: run it again.")


def _list_files(path: Path) -> dict[str, Path]:
    """The files in a folder that are not hidden, by their names in it; or the one file."""
    if path.is_file():
        return {path.name: path}
    files = []
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files += [Path(folder, name) for name in names if not name.startswith(".")]
    return {file.relative_to(path).as_posix(): file for file in sorted(files)}


def _digest_files(files: Mapping[str, Path]) -> str:
    return digest_of(dict(zip(files, each(_sha256, files.values()), strict=True)))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
