"""Copies data on this machine that is not under DVC."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile

from retrain.digests import sha256_of
from retrain.errors import UsageError
from retrain.runs import console
from retrain.step import digest_of
from tasks.data.listing import check_names, list_files
from tasks.pull.transfer import map_in_threads


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
        with self._unchanged():
            files = self._files()
            if not files:
                exists = "has no regular file" if self.path.exists() else "does not exist"
                raise UsageError(
                    f"data.path: {self.path} {exists}. (For a data set on the Hugging Face hub, "
                    "set data.format to hub.)"
                )
            check_names(files)
            size = sum(path.stat().st_size for path in files.values())
            with console.counted("reading", size, "bytes") as show:
                digests = map_in_threads(lambda path: sha256_of(path, show), files.values())
        return digest_of(dict(zip(files, digests, strict=True)))

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Copies the files, and reads the copies."""

        def copy(name: str) -> None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            copyfile(files[name], folder / name)

        with self._unchanged(), console.progress("copying"):
            files = self._files()
            map_in_threads(copy, files)
        if LocalSource(folder).digest() != digest:
            raise ValueError(f"{self.path} has changed since the run started: run it again.")

    def _files(self) -> dict[str, Path]:
        """The regular files, by their names in the folder; or the one file."""
        if self.path.is_dir():
            return {name: self.path / name for name, _ in list_files(self.path)}
        return {self.path.name: self.path} if self.path.is_file() else {}

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise ValueError(
                f"{self.path} has changed while it was read ({error.filename} is gone): run it "
                "again."
            ) from error
