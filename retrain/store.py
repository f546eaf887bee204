"""Stores the outputs of the steps: one folder with a manifest each, published atomically.

No file in the store is ever executed: they are JSON, Parquet, NumPy arrays without objects,
safetensors, and files for people. What changed since it was made is found by the digests.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.errors import DamagedArtifactError
from retrain.file_io import sha256_of
from retrain.locks import locked
from retrain.outputs import MANIFEST, Artifact as Artifact, parse_manifest
from retrain.project import Project
from retrain.runs import console
from retrain.store_mirror import Mirror

_SCRATCH = "scratch"
_LAST = "last"


@dataclass(frozen=True)
class Store:
    """The artifacts of a project, by step and key: `<root>/<step>/<key>/`.

    Attributes:
        root: The folder.
        mirror: The mirror, from which an artifact that is not here is taken, and to which one that
            was made here is sent; None if there is none.
    """

    root: Path
    mirror: Mirror | None = None

    @classmethod
    def of(cls, project: Project) -> "Store":
        """The store of a project, with the mirror that its settings name."""
        url = project.store_remote
        return cls(project.store, Mirror(url) if url else None)

    def folder(self, step: str, key: str) -> Path:
        """The folder of an artifact, whether it exists or not."""
        return self.root / step / key

    def find(self, step: str, key: str) -> Artifact | None:
        """The artifact with a key that is here; None if it is missing or has `damage`."""
        manifest, damage = self.inspect(step, key)
        return None if damage else Artifact.of(step, key, self.folder(step, key), manifest)

    def damage(self, step: str, key: str) -> str | None:
        """What is wrong with an artifact; None if nothing is.

        Only the manifest and the names and sizes of the files are checked, not their content.
        """
        return self.inspect(step, key)[1]

    def inspect(self, step: str, key: str) -> tuple[dict[str, Any], str | None]:
        """The manifest of an artifact, empty if it is damaged itself; and the `damage`."""
        folder = self.folder(step, key)
        try:
            manifest = parse_manifest((folder / MANIFEST).read_bytes(), key)
        except FileNotFoundError:
            return {}, "its artifact is gone"
        except (OSError, ValueError, KeyError, TypeError):
            return {}, f"its {MANIFEST} cannot be read"
        if manifest is None:
            return {}, f"its {MANIFEST} has changed"
        for file in manifest["files"]:
            try:
                size = os.stat(f"{folder}/{file['path']}").st_size  # noqa: PTH116  a million of them
            except OSError:
                return manifest, f"{file['path']} is gone"
            if size != file["bytes"]:
                return manifest, f"{file['path']} has changed its size"
        return manifest, None

    def obtain(self, step: str, key: str) -> Artifact | None:
        """The artifact with a key, here or from the mirror; the caller holds its lock.

        None if neither has it, or the mirror is away.
        """
        artifact, mirror = self.find(step, key), self.mirror
        if artifact is None and mirror:
            half = self.partial(step, key)
            half.mkdir(parents=True)
            if mirror.attempt(lambda: mirror.fetch(step, key, half)):
                self.replace(step, key)
                return self.find(step, key)
            shutil.rmtree(half)
        return artifact

    @contextmanager
    def making(self, step: str, key: str, *, anew: bool) -> Iterator[None]:
        """Holds a key's lock while the block finds or makes its artifact.

        Before it, what killed runs have left of the key is removed, its scratch only if `anew`.
        After it, the artifact is sent to the mirror, if that lacks it; one that is away is told
        once.
        """
        with self.lock(step, key):
            self.use(step, key)
            for end in ("partial", "discarded"):
                half = self.partial(step, key).with_suffix(f".{end}")
                shutil.rmtree(half, ignore_errors=True)
            if anew:
                self.forget(step, key)
            yield
            mirror, folder = self.mirror, self.folder(step, key)
            if mirror and not self.damage(step, key):
                mirror.attempt(lambda: mirror.send(step, key, folder))

    def entries(self) -> Iterator[tuple[str, str]]:
        """The step and the key of every artifact, damaged ones too."""
        for path in sorted(self.root.glob("*/*")):
            if path.is_dir() and not path.name.startswith(".") and not self._is_own(path.parent):
                yield path.parent.name, path.name

    def leftovers(self) -> Iterator[tuple[str, str, Path]]:
        """The step, the key and the folder of what is being made, or killed runs have left."""
        half = [path for end in ("partial", "discarded") for path in self.root.glob(f"*/.*.{end}")]
        half = [path for path in half if not self._is_own(path.parent)]
        for path in sorted([*half, *self.root.glob(f"{_SCRATCH}/*/*")]):
            step, key = path.parent.name, path.name.removeprefix(".").partition(".")[0]
            yield step, key, path

    def _is_own(self, folder: Path) -> bool:
        return folder.name in (_SCRATCH, _LAST) or folder.name.startswith(".")

    def discard(self, step: str, key: str) -> None:
        """Removes an artifact from the store; the caller holds its lock."""
        folder = self.folder(step, key)
        if folder.exists():
            # Renamed first: a reader sees the complete artifact or none.
            discarded = folder.with_name(f".{key}.discarded")
            shutil.rmtree(discarded, ignore_errors=True)
            folder.rename(discarded)
            shutil.rmtree(discarded)

    def replace(self, step: str, key: str) -> None:
        """Publishes what is in `partial` in place of what is there; the caller holds the lock."""
        self.discard(step, key)
        self.partial(step, key).rename(self.folder(step, key))

    def partial(self, step: str, key: str) -> Path:
        """The folder where an artifact is written before it is published."""
        return self.root / step / f".{key}.partial"

    @contextmanager
    def lock(self, step: str, key: str, *, wait: bool = True) -> Iterator[None]:
        """Holds the lock of a key, so that only one of two runs makes the artifact.

        Args:
            step: The step of the key.
            key: The key to lock.
            wait: Whether to wait until another process releases it, which is shown.

        Raises:
            filelock.Timeout: Another process holds it, and `wait` is false.
            ValueError: The file system has no locks.
        """
        path = self.lock_file(step, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        purpose = f"{step} waits for another run, which has the same to make"
        with locked(path, wait=wait, purpose=purpose):
            yield

    def find_digest(self, step: str, digest: str) -> Artifact | None:
        """An artifact of a step with a digest, whatever its key is; None if there is none."""
        for name, key in self.entries():
            if name == step and (artifact := self.find(step, key)) and artifact.digest == digest:
                return artifact
        return None

    def lock_file(self, step: str, key: str) -> Path:
        """The file of a key's lock. A process that holds the lock may delete it."""
        return self.root / step / f".{key}.lock"

    def scratch(self, step: str, key: str) -> Path:
        """A folder that is kept when a run is killed, for a step's checkpoints."""
        folder = self.root / _SCRATCH / step / key
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def forget(self, step: str, key: str) -> None:
        """Removes a key's scratch, so that the step starts anew; the caller holds its lock."""
        shutil.rmtree(self.scratch(step, key))

    def last_plan(self, workload: str, step: str) -> Path:
        """The file that keeps the last plan of a step."""
        return self.root / _LAST / workload / f"{step}.json"

    def use(self, step: str, key: str) -> None:
        """Records that an artifact or its scratch is used now, for `retrain gc`."""
        for path in (self.folder(step, key) / MANIFEST, self.root / _SCRATCH / step / key):
            with suppress(FileNotFoundError):
                os.utime(path)

    def last_used(self, step: str, key: str) -> float:
        """When a run last used or made an artifact, or wrote to its scratch.

        Returns:
            Seconds since the epoch; 0 if there is neither.
        """
        folder, scratch = self.folder(step, key), self.root / _SCRATCH / step / key
        latest = 0.0
        for path in (folder, folder / MANIFEST, scratch, *scratch.rglob("*")):
            with suppress(FileNotFoundError):
                latest = max(latest, path.stat().st_mtime)
        return latest


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

    def damage_in(file: Mapping[str, Any]) -> str | None:
        try:
            is_same = sha256_of(f"{folder}/{file['path']}", show) == file["sha256"]
        except OSError as error:
            return f"{file['path']} cannot be read: {error.strerror}"
        return None if is_same else f"{file['path']} has changed"

    checking = console.counted(f"checking the output of {step}", size, "bytes")
    with checking as show, ThreadPoolExecutor(THREADS) as pool:
        return next(filter(None, pool.map(damage_in, files)), None)


def damage_of(store: Store, artifact: Artifact) -> str | None:
    """What is wrong with an artifact of the store, all of which is read; None if nothing is."""
    if not artifact.folder.is_relative_to(store.root):
        return None
    return find_damage(store, artifact.step, artifact.key, artifact.digest)


def refuse_damaged(store: Store, artifact: Artifact) -> None:
    """Reads all of an artifact before it is used, if it is in the store.

    Raises:
        DamagedArtifactError: It has changed since it was made; it was removed from the store.
    """
    if damage := damage_of(store, artifact):
        discard_if_damaged(store, artifact.step, artifact.key)
        raise DamagedArtifactError(artifact.step, artifact.key, damage)


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


def verify(store: Store) -> list[Damage]:
    """The damaged artifacts of a store, all read, except those that a run is making again."""
    from filelock import Timeout

    damaged = []
    for step, key in store.entries():
        with suppress(Timeout), store.lock(step, key, wait=False):
            reason = find_damage(store, step, key)
            if reason and store.folder(step, key).exists():
                damaged.append(Damage(step, key, reason))
    return damaged


def discard_if_damaged(store: Store, step: str, key: str) -> None:
    """Removes an artifact from the store if it is damaged, so that the next run makes it again."""
    with store.lock(step, key):
        if find_damage(store, step, key):  # not if another run has made it again
            store.discard(step, key)
