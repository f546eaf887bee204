"""Downloads data from a URL of any protocol that fsspec knows."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from retrain.errors import UsageError
from retrain.runs import console
from retrain.step import digest_of
from tasks.data.listing import link_file
from tasks.pull.transfer import inside, reaching

# The names that file systems use for a mark of a file's content, else for the time of its last
# change, in lower case without `-` and `_`.
_MARKS = (
    *("etag", "contentmd5", "md5hash", "digest", "generation", "versionid", "blobid"),
    *("lastmodified", "mtime", "modificationtime", "updated", "created"),
)


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
            return digest_of({name: _mark(file_system, files[name]) for name in sorted(files)})

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Downloads the files, except those that a killed run has.

        Raises:
            OSError: Fewer bytes came than the server has announced.
        """
        downloads = scratch / "url"
        downloads.mkdir(exist_ok=True)
        with self._open() as (file_system, files):
            targets = {name: inside(folder, name) for name in files}
            places = {name: downloads / digest_of(name) for name in files}
            missing = [name for name in files if _size(places[name]) != files[name]["size"]]
            with console.progress(f"downloading {len(missing):,} files"):
                file_system.get(
                    [files[name]["name"] for name in missing],
                    [str(places[name]) for name in missing],
                )
            for name in missing:
                if files[name]["size"] not in (None, received := _size(places[name])):
                    raise OSError(f"{received:,} bytes of {name} came, and not all")
        for name, target in targets.items():
            link_file(places[name], target)
        if self.digest() != digest:
            raise ValueError(f"{self.url} has changed since the run started: run it again.")

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, dict[str, dict[str, Any]]]]:
        """The file system, and its information on each file, by the file's name in the folder."""
        from fsspec.core import url_to_fs

        try:
            file_system, root = url_to_fs(self.url, **_storage_options(self.url))
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


def _storage_options(url: str) -> dict[str, Any]:
    """For HTTP, proxies from the environment, and time for a large file while bytes arrive."""
    if not url.startswith(("http://", "https://")):
        return {}
    from aiohttp import ClientTimeout

    timeout = ClientTimeout(total=None, sock_connect=30, sock_read=60)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}


def _list_remote(file_system: Any, root: str, url: str) -> dict[str, dict[str, Any]]:
    info = file_system.info(root)
    if info["type"] != "directory":
        return {PurePosixPath(urlsplit(url).path).name or "data": info}
    files = {}
    for path, info in file_system.find(root, detail=True).items():
        name = path.removeprefix(root.rstrip("/") + "/")
        hidden = any(part[:1] in ("", ".") and part != ".." for part in name.split("/"))
        # Links on this machine are listed as `other`, as pipes and devices are.
        if not hidden and (info["type"] == "file" or file_system.isfile(info["name"])):
            files[name] = info
    return files  # `..` is refused later, and not left out


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def _mark(file_system: Any, info: Mapping[str, Any]) -> list[str]:
    """A mark that differs between versions of a remote file."""
    fields = {re.sub("[-_]", "", key.lower()): str(value) for key, value in info.items() if value}
    if known := [f"{mark} {fields[mark]}" for mark in _MARKS if mark in fields]:
        return [known[0], f"size {info.get('size')}"]
    with file_system.open(info["name"], "rb") as file:
        return [f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"]
