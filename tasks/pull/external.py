"""Data that is not under DVC: on this machine, at a URL, on the Hugging Face hub."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from retrain.errors import UsageError
from retrain.step import digest_of
from tasks.pull.transfer import copy_file, each, inside, reaching

# What file systems call that which changes with a file's content, and that which changes when it
# is written, without capitals, `-` and `_`.
_CONTENT_MARKS = {"etag", "contentmd5", "md5hash", "digest", "generation", "versionid", "blobid"}
_TIME_MARKS = {"lastmodified", "mtime", "modificationtime", "updated", "created"}


@dataclass(frozen=True)
class LocalSource:
    """A folder or a file of this machine, outside `data/`; what is hidden in it is left out.

    Nothing but its content tells its version, so every run reads all of it before it starts (on
    two cores and a local disk 0.5 GB, or 20,000 small files, a second), and `pull` copies it. Data
    for which that is too slow belongs under DVC, where a run reads one line.

    Attributes:
        path: Absolute.
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


@dataclass(frozen=True)
class UrlSource:
    """A file, or a folder where the protocol knows folders, at a URL of any fsspec protocol.

    Attributes:
        url: `https://…`, `s3://…`, `gs://…`, `file://…`
    """

    url: str

    def digest(self) -> str:
        """SHA-256 (hex) over what the server says of each file: its ETag or hash, else its time.

        A file of which the server says nothing is read.
        """
        with self._open() as (file_system, files):
            return digest_of(
                {name: _mark(file_system, info) for name, info in sorted(files.items())}
            )

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Downloads the files."""
        with self._open() as (file_system, files):
            targets = {info["name"]: inside(folder, name) for name, info in files.items()}
            for target in targets.values():
                target.parent.mkdir(parents=True, exist_ok=True)
            file_system.get(list(targets), [str(target) for target in targets.values()])
        if self.digest() != digest:
            raise ValueError(f"{self.url} has changed since the run started: run it again.")

    @contextmanager
    def _open(self) -> Iterator[tuple[Any, dict[str, dict[str, Any]]]]:
        """The file system, and what it says of each file, by the file's name in the folder."""
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
    prefix = root.rstrip("/") + "/"
    found = file_system.find(root, detail=True)
    names = {path.removeprefix(prefix): info for path, info in found.items()}
    return {
        name: info
        for name, info in names.items()
        if name and not any(part.startswith(".") or not part for part in name.split("/"))
    }


def _mark(file_system: Any, info: Mapping[str, Any]) -> list[str]:
    """What tells one version of a remote file from another."""
    said = {re.sub("[-_]", "", key.lower()): str(value) for key, value in info.items() if value}
    for marks in (_CONTENT_MARKS, _TIME_MARKS):
        known = [f"{key} {said[key]}" for key in sorted(marks & said.keys())]
        if known:
            return [*known, f"size {info.get('size')}"]
    with file_system.open(info["name"], "rb") as file:
        return [f"sha256 {hashlib.file_digest(file, 'sha256').hexdigest()}"]


@dataclass(frozen=True)
class HubSource:
    """The Parquet files of a data set on the Hugging Face hub.

    A data set that has none may have a copy that the hub made: `name@refs/convert/parquet`.

    Attributes:
        name: `owner/name`.
        revision: A branch, a tag or a commit.
    """

    name: str
    revision: str

    def digest(self) -> str:
        """The commit that the revision is now; a whole commit hash is not asked about."""
        from huggingface_hub import HfApi

        if re.fullmatch("[0-9a-f]{40}", self.revision):
            return self.revision
        with self._reached():
            return str(HfApi().dataset_info(self.name, revision=self.revision).sha)

    def fetch(self, digest: str, folder: Path, scratch: Path) -> None:
        """Downloads the files; what a killed run has downloaded is not downloaded again."""
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()

        def download(name: str) -> None:
            hf_hub_download(
                self.name, name, repo_type="dataset", revision=digest, local_dir=scratch / "hub"
            )

        with self._reached():
            names = HfApi().list_repo_files(self.name, repo_type="dataset", revision=digest)
            names = [name for name in names if name.endswith(".parquet")]
            if not names:
                raise UsageError(
                    f"data.path: {self.name} on the Hugging Face hub has no Parquet files. Try "
                    f"{self.name}@refs/convert/parquet, where the hub keeps a copy of many."
                )
            each(download, names)
        for name in names:
            target = inside(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(scratch / "hub" / name, target)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        from huggingface_hub.errors import (
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        with reaching(f"The data set {self.name} on the Hugging Face hub cannot be read."):
            try:
                yield
            except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError) as error:
                raise UsageError(
                    f"data.path: the Hugging Face hub gives no data set {self.name} at revision "
                    f"{self.revision}. If it is private or gated, log in first: hf auth login"
                ) from error
