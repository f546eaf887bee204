"""Checks whether artifacts have changed since they were made, by the digests of their files."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from retrain.digests import sha256_of
from retrain.errors import DamagedArtifactError
from retrain.runs import console
from retrain.store import Artifact, Store

THREADS = 4  # with more, those that read small files wait for each other


def find_damage(store: Store, step: str, key: str, digest: str | None = None) -> str | None:
    """Reads all files of an artifact; tells what is wrong with it, None if nothing is.

    Args:
        store: Where the artifact is.
        step: The step that made it.
        key: The key of the artifact.
        digest: The digest that it has to have; None if any will do.
    """
    manifest, damage = store.inspect(step, key)
    if damage:
        return damage
    if digest not in (None, manifest["digest"]):
        return "it was made again with another output"
    folder, files = store.folder(step, key), manifest["files"]
    size = sum(file["bytes"] for file in files)

    def damage_of(file: Mapping[str, Any]) -> str | None:
        try:
            is_same = sha256_of(f"{folder}/{file['path']}", show) == file["sha256"]
        except OSError as error:
            return f"{file['path']} cannot be read: {error.strerror}"
        return None if is_same else f"{file['path']} has changed"

    checking = console.counted(f"checking the output of {step}", size, "bytes")
    with checking as show, ThreadPoolExecutor(THREADS) as pool:
        return next(filter(None, pool.map(damage_of, files)), None)


def refuse_damaged(store: Store, artifact: Artifact) -> None:
    """Reads all of an artifact before it is used, if it is in the store.

    Raises:
        DamagedArtifactError: It has changed since it was made; it was removed from the store.
    """
    name = (artifact.step, artifact.key)
    is_stored = artifact.folder.is_relative_to(store.root)
    if is_stored and (damage := find_damage(store, *name, artifact.digest)):
        discard_if_damaged(store, *name)
        raise DamagedArtifactError(*name, damage)


@dataclass(frozen=True)
class Damage:
    """An artifact that has changed since it was made.

    Attributes:
        step: The step that made it.
        key: The key of the artifact.
        reason: What is wrong with the artifact.
    """

    step: str
    key: str
    reason: str


def verify(store: Store, progress: Callable[[int, int], None]) -> list[Damage]:
    """Reads all artifacts of a store.

    Args:
        store: The store.
        progress: Called after each artifact with the number that were read and the number of all.

    Returns:
        The damaged artifacts, except those that a run is making again.
    """
    from filelock import Timeout

    damaged, keys = [], list(store.entries())
    for number, (step, key) in enumerate(keys, 1):
        with suppress(Timeout), store.lock(step, key, wait=False):
            reason = find_damage(store, step, key)
            if reason and store.folder(step, key).exists():
                damaged.append(Damage(step, key, reason))
        progress(number, len(keys))
    return damaged


def discard_if_damaged(store: Store, step: str, key: str) -> None:
    """Removes an artifact from the store if it is damaged, so that the next run makes it again."""
    with store.lock(step, key):
        if find_damage(store, step, key):  # not if another run has made it again
            store.discard(step, key)
