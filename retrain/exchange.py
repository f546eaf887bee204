"""Brings the files of artifacts from the remote store, and sends them there."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from retrain.digests import sha256_of
from retrain.errors import RemoteError
from retrain.outputs import MANIFEST, parse_manifest, read_digests
from retrain.remote import Remote
from retrain.runs import console

THREADS = 8

File = Mapping[str, Any]  # as a manifest lists it: `path`, `bytes`, `sha256`
Show = Callable[[int], object]


def manifest_path(step: str, key: str) -> str:
    """The path of a manifest below the remote's URL."""
    return f"artifacts/{step}/{key}.json"


def file_path(sha256: str) -> str:
    """The path of a file's content below the remote's URL."""
    return f"files/{sha256[:2]}/{sha256}"


def find(remote: Remote, step: str, key: str, *, patient: bool = False) -> dict[str, Any] | None:
    """The manifest of an artifact in the remote store, with its `remote`; None if there is none.

    Raises:
        RemoteError: The remote store does not answer.
    """
    content = remote.read(manifest_path(step, key), patient=patient)
    try:
        manifest = content and parse_manifest(content, key)
    except (ValueError, KeyError, TypeError):
        return None
    return manifest | {"remote": remote.url} if manifest else None


def beside(folder: Path) -> dict[str, Path]:
    """The files of the output of the same step that was used last here, by their SHA-256 (hex).

    Args:
        folder: The folder of an artifact, which is left out.
    """
    others = (path for path in folder.parent.glob(f"[!.]*/{MANIFEST}") if path.parent != folder)
    newest = max(others, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return {}
    digests = read_digests(newest.parent)
    return {digest: newest.parent / path for path, digest in digests.items()}


def receive(
    remote: Remote,
    files: Sequence[File],
    folder: Path,
    aside: Path,
    here: Mapping[str, Path] | None = None,
) -> str | None:
    """Brings files into the folder of an artifact; each appears there when it is complete.

    Args:
        remote: The remote store.
        files: The files.
        folder: The artifact's folder.
        aside: A folder for the time being, which is removed.
        here: Files of this machine by their SHA-256 (hex), which need not be fetched.

    Returns:
        What is wrong with one of them in the remote store; None if nothing is.

    Raises:
        RemoteError: The remote store does not answer.
    """
    size = sum(file["bytes"] for file in files)
    counted = console.counted(f"fetching {folder.parent.name}", size, "bytes")
    try:
        with counted as show, ThreadPoolExecutor(THREADS) as pool:
            fetch = partial(_receive, remote, folder, aside, here or {}, show)
            return next(filter(None, pool.map(fetch, files)), None)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _receive(
    remote: Remote,
    folder: Path,
    aside: Path,
    here: Mapping[str, Path],
    show: Show,
    file: File,
) -> str | None:
    half, target = aside / file["path"], folder / file["path"]
    for path in (half, target):
        path.parent.mkdir(parents=True, exist_ok=True)
    if _is_linked(here.get(file["sha256"]), target, file["sha256"]):
        show(file["bytes"])
        return None
    digest = remote.download(file_path(file["sha256"]), half, show)
    if digest == file["sha256"]:
        half.rename(target)
        return None
    if digest:
        with suppress(RemoteError):  # so that it is sent again
            remote.delete([file_path(file["sha256"])])
    return f"{file['path']} {'has changed' if digest else 'is gone'} in the remote store"


def _is_linked(source: Path | None, target: Path, sha256: str) -> bool:
    """Makes a link to a file that is here, if it has a content; whether it could be done."""
    with suppress(OSError):  # it is gone, or the file system has no links
        if source and sha256_of(source) == sha256:
            target.hardlink_to(source)
            return True
    return False


def send(
    remote: Remote,
    step: str,
    key: str,
    manifest: Mapping[str, Any],
    folder: Path,
    *,
    patient: bool = False,
) -> dict[str, Any]:
    """Sends the files of an artifact that the remote store does not have, and then its manifest.

    Args:
        remote: The remote store.
        step: The step that made the artifact.
        key: The artifact's key.
        manifest: Its manifest.
        folder: Its folder; files that the remote has need not be there.
        patient: Wait for minutes for a remote that is away, because nothing goes on without.

    Returns:
        The manifest, with its `remote`.

    Raises:
        RemoteError: The remote store does not answer, or refuses, or has lost a file.
    """
    files = {file["sha256"]: file for file in manifest["files"]}.values()
    size = sum(file["bytes"] for file in files)
    counted = console.counted(f"sending {step}", size, "bytes")
    with counted as show, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(partial(_send, remote, folder, show, patient), files))
    known = {name: value for name, value in manifest.items() if name != "remote"}
    content = json.dumps(known, sort_keys=True).encode()
    remote.write(manifest_path(step, key), content, patient=patient)
    return known | {"remote": remote.url}


def _send(remote: Remote, folder: Path, show: Show, patient: bool, file: File) -> None:
    if not has(remote, file, patient=patient):
        content = folder / file["path"]
        if not content.exists():
            raise RemoteError(f"{file['path']} is gone in the remote store {remote.url}.")
        remote.write(file_path(file["sha256"]), content)
    show(file["bytes"])


def send_file(remote: Remote, file: Path) -> dict[str, Any]:
    """Sends a file, if the remote store does not have its content.

    Returns:
        Its `bytes` and `sha256` (hex), as a manifest lists them.

    Raises:
        RemoteError: The remote store does not answer for minutes, or refuses.
    """
    entry: dict[str, Any] = {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
    if not has(remote, entry, patient=True):
        remote.write(file_path(entry["sha256"]), file)
    return entry


def has(remote: Remote, file: File, *, patient: bool) -> bool:
    """Whether the remote store has the content of a file, by its size; see `Remote.read`."""
    return bool(remote.size(file_path(file["sha256"]), patient=patient) == file["bytes"])


def withdraw(remote: Remote, step: str, key: str, manifest: Mapping[str, Any]) -> None:
    """Deletes the manifest of an artifact that has lost a file, unless it was made again."""
    with suppress(RemoteError):
        current = find(remote, step, key)
        if current and current["files"] == manifest["files"]:
            remote.delete([manifest_path(step, key)])
