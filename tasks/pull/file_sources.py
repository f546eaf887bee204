"""Copies files of this machine, and from a URL of any protocol that fsspec knows.

What all sources of data share is at the end: safe paths, calls in threads, and the errors of
storage libraries.
"""

import errno
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path, PurePosixPath
from shutil import copyfile
from typing import Any, TypeVar
from urllib.parse import urlsplit

from retrain.errors import UsageError
from retrain.file_io import json_digest, sha256_of
from retrain.runs import console
from tasks.data.listing import is_data, link_file, list_files

T = TypeVar("T")
R = TypeVar("R")

THREADS = 16  # they wait for disks and networks
DISK = (errno.EDQUOT, errno.EFBIG, errno.ENOSPC)  # does not take any more
# The names that file systems use for a mark of a file's content, else for the time of its last
# change, in lower case without `-` and `_`.
_MARKS = (
    "etag",
    "contentmd5",
    "md5hash",
    "digest",
    "generation",
    "versionid",
    "blobid",
    "lastmodified",
    "mtime",
    "modificationtime",
    "updated",
    "created",
)


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
                raise UsageError(
                    f"data.path: {self.path} "
                    f"{'has no regular file' if self.path.exists() else 'does not exist'}. (For a "
                    "data set on the Hugging Face hub, set data.format to hub.)"
                )
            size = sum(path.stat().st_size for path in files.values())
            with console.counted("reading", size, "bytes") as show:
                digests = map_in_threads(lambda path: sha256_of(path, show), files.values())
        return json_digest(dict(zip(files, digests, strict=True)))

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


@dataclass(frozen=True)
class UrlSource:
    """A file, or a folder where the protocol knows folders, at a URL of any fsspec protocol.

    Attributes:
        url: `https://…`, `s3://…`, `gs://…`, without a login.
    """

    url: str

    def digest(self) -> str:
        """SHA-256 (hex) over a mark of each file from the server: its ETag or hash, else its time.

        A file without any of these is read.
        """
        with self._open() as (file_system, files):
            return json_digest({name: _mark(file_system, files[name]) for name in sorted(files)})

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Downloads the files, except those that a killed run has."""
        downloads = scratch / "url"
        downloads.mkdir(exist_ok=True)
        with self._open() as (file_system, files):
            targets = {name: inside(folder, name) for name in files}
            places = {name: downloads / json_digest(name) for name in files}
            done = {path.name: path.stat().st_size for path in downloads.iterdir()}
            missing = [name for name in files if done.get(places[name].name) != files[name]["size"]]
            with console.progress(f"downloading {len(missing):,} files"):
                file_system.get(
                    [files[name]["name"] for name in missing],
                    [str(places[name]) for name in missing],
                )
        for name, target in targets.items():
            link_file(places[name], target)
        if self.digest() != digest:
            raise ValueError(f"{self.url} has changed since the run started: run it again.")

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, dict[str, dict[str, Any]]]]:
        """The file system, and its information on each file, by the file's name in the folder."""
        from fsspec.core import url_to_fs

        options: dict[str, Any] = {}
        if self.url.startswith(("http://", "https://")):
            from aiohttp import ClientTimeout

            # Proxies from the environment, and time for a large file while bytes arrive.
            timeout = ClientTimeout(total=None, sock_connect=30, sock_read=60)
            options["client_kwargs"] = {"timeout": timeout, "trust_env": True}
        try:
            file_system, root = url_to_fs(self.url, **options)
        except (ImportError, ValueError) as error:
            raise UsageError(f"data.path {self.url}: {error}") from error
        with reaching(f"{self.url} cannot be read. Is it reachable?"):
            try:
                file_system.invalidate_cache()
                yield file_system, _list_remote(file_system, root, self.url)
            except FileNotFoundError as error:
                # Over HTTP every failure comes as this one, with the server's answer as its cause.
                answer = error.__cause__
                if answer is None or getattr(answer, "status", None) in (401, 403, 404, 410):
                    raise UsageError(
                        f"data.path: there is nothing at {self.url}, or it may not be read."
                    ) from error
                raise answer from None


def _list_remote(file_system: Any, root: str, url: str) -> dict[str, dict[str, Any]]:
    info = file_system.info(root)
    if info["type"] != "directory":
        return {PurePosixPath(urlsplit(url).path).name or "data": info}
    files = {}
    for path, info in file_system.find(root, detail=True).items():
        name = path.removeprefix(root.rstrip("/") + "/")
        hidden = not all(part == ".." or (part and is_data(part)) for part in name.split("/"))
        # Links on this machine are listed as `other`, as pipes and devices are.
        if not hidden and (info["type"] == "file" or file_system.isfile(info["name"])):
            files[name] = info
    return files  # `..` is refused later, and not left out


def _mark(file_system: Any, info: Mapping[str, Any]) -> list[str]:
    """A mark that differs between versions of a remote file."""
    fields = {re.sub("[-_]", "", key.lower()): str(value) for key, value in info.items() if value}
    if known := [f"{mark} {fields[mark]}" for mark in _MARKS if mark in fields]:
        return [known[0], f"size {info.get('size')}"]
    with file_system.open(info["name"], "rb") as file:
        return [f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"]


def inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder.

    Raises:
        ValueError: The name, which came from elsewhere, leads outside the folder.
    """
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(
            f"The data has a file with the name {name!r}, which leads out of its folder. Nothing "
            "is taken."
        )
    return folder / name


def map_in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Calls a function with each item, in threads; the results in the items' order."""
    with ThreadPool(THREADS) as pool:  # which takes many small ones in chunks
        return pool.map(function, items)


@contextmanager
def reaching(fault: str) -> Iterator[None]:
    """Turns the errors of storage libraries into one, after which a retry may help.

    Those of the disk that is written to stay as they are.
    """
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        if getattr(error, "errno", None) in DISK:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConnectionError(f"{fault} ({reason})") from error
