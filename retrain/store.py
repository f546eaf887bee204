"""Stores the outputs of the steps: one folder with a manifest each, published atomically.

No file in the store is ever executed: they are JSON, Parquet, NumPy arrays without objects,
safetensors, and files for people.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from errno import ENOTEMPTY
from pathlib import Path
from typing import Any

from retrain import exchange
from retrain.atomic import replacing, write_json
from retrain.errors import DamagedArtifactError
from retrain.holds import RunContext as RunContext, Runs
from retrain.locks import locked
from retrain.outputs import MANIFEST, Artifact as Artifact, parse_manifest, write_manifest
from retrain.project import Project
from retrain.remote import Remote

_SCRATCH = "scratch"
_LAST = "last"
_HOLDS = ".holds"
ROOTS = "roots"
_FILES = "files.json"  # of a scratch: which files it was made from


@dataclass(frozen=True)
class Store:
    """The artifacts that this machine knows, by step and key: `<root>/<step>/<key>/`.

    With a remote store, those of other machines are known too. Their files are fetched when they
    are needed: the manifest then has the remote's URL as `remote`, and files may be missing.

    Attributes:
        root: The folder.
        remote: Where all machines find what one has made; None if this one works alone.
    """

    root: Path
    remote: Remote | None = None

    @classmethod
    def of(cls, project: Project) -> "Store":
        """The store of a project, with the remote store that its settings name."""
        remote = project.store_remote
        return cls(project.store, Remote(remote) if remote else None)

    @property
    def runs(self) -> Runs:
        """The runs that use the store."""
        return Runs(self.root / _HOLDS)

    def folder(self, step: str, key: str) -> Path:
        """The folder of an artifact, whether it exists or not."""
        return self.root / step / key

    def find(self, step: str, key: str) -> Artifact | None:
        """The artifact with a key, here or in the remote store.

        None if it is missing or damaged, as `inspect` finds.
        """
        manifest, damage = self.inspect(step, key)
        if damage and not (manifest := self._adopt(step, key) or {}):
            return None
        return Artifact.of(step, key, self.folder(step, key), manifest)

    def damage(self, step: str, key: str) -> str | None:
        """What is wrong with an artifact; None if nothing is, or the remote store has it.

        Only the manifest and the names and sizes of the files are checked, not their content.
        """
        damage = self.inspect(step, key)[1]
        return None if damage and self._adopt(step, key) else damage

    def inspect(self, step: str, key: str) -> tuple[dict[str, Any], str | None]:
        """The manifest of an artifact that is known here, and its `damage`.

        A damaged manifest is returned empty. A file that can be fetched need not be here.
        """
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
                if self.can_fetch(manifest):
                    continue
                return manifest, f"{file['path']} is gone"
            if size != file["bytes"]:
                return manifest, f"{file['path']} has changed its size"
        return manifest, None

    def can_fetch(self, manifest: Mapping[str, Any]) -> bool:
        """Whether the remote store has the files of an artifact."""
        return self.remote is not None and manifest.get("remote") == self.remote.url

    def _adopt(self, step: str, key: str, *, patient: bool = False) -> dict[str, Any] | None:
        """The manifest of an artifact that only the remote store has; it is known here from now on.

        None if there is none, or the folder is here and damaged.
        """
        remote, folder = self.remote, self.folder(step, key)
        if remote is None or folder.exists():
            return None
        if patient:
            manifest = exchange.find(remote, step, key, patient=True)
        else:
            manifest = remote.attempt(lambda: exchange.find(remote, step, key))
        if manifest:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with replacing(folder) as aside:
                aside.mkdir()
                write_manifest(aside / MANIFEST, manifest)
        return manifest

    def fetch(self, artifact: Artifact, wanted: Callable[[str], bool] = lambda path: True) -> Path:
        """Brings the files of an artifact that are missing here from the remote store.

        Several processes of a machine bring each file once.

        Args:
            artifact: The artifact, as this machine or another one has found it.
            wanted: Whether a file is needed, by its path below the artifact's folder.

        Returns:
            The folder of the artifact on this machine.

        Raises:
            DamagedArtifactError: A file has changed in the remote store, or is gone there; the
                artifact has to be made again.
            RemoteError: The remote store does not answer.
        """
        if self.remote is None:
            return artifact.folder
        step, key, folder = artifact.step, artifact.key, self.folder(artifact.step, artifact.key)
        self._adopt(step, key, patient=True)
        if self.missing(step, key, wanted):
            purpose = f"another process fetches what {step} has made"
            with self.lock(step, key, purpose=purpose):
                missing, aside = self.missing(step, key, wanted), self.partial(step, key)
                here = exchange.beside(folder)
                if damage := exchange.receive(self.remote, missing, folder, aside, here):
                    exchange.withdraw(self.remote, step, key, self.inspect(step, key)[0])
                    self.discard(step, key)
                    raise DamagedArtifactError(step, key, damage)
        return folder

    def missing(
        self, step: str, key: str, wanted: Callable[[str], bool] = lambda path: True
    ) -> list[Mapping[str, Any]]:
        """The files of an artifact that are wanted, and that only the remote store has."""
        manifest, folder = self.inspect(step, key)[0], self.folder(step, key)
        files = manifest["files"] if self.can_fetch(manifest) else ()
        return [
            file for file in files if wanted(file["path"]) and not (folder / file["path"]).exists()
        ]

    def push(self, step: str, key: str) -> None:
        """Sends an artifact to the remote store, if that does not have it.

        If the remote is away, this is told, and a later run sends the artifact. The caller holds
        the key's lock.
        """
        remote, folder = self.remote, self.folder(step, key)
        if remote is None:
            return
        manifest, damage = self.inspect(step, key)
        if damage or self.can_fetch(manifest):
            return
        if sent := remote.attempt(lambda: exchange.send(remote, step, key, manifest, folder)):
            write_manifest(folder / MANIFEST, sent)

    @contextmanager
    def making(self, step: str, key: str, *, refresh: bool = False) -> Iterator[None]:
        """Keeps other runs, of all machines, from making an artifact that the block makes or finds.

        After the block it is sent to the remote store.

        Args:
            step: The step of the key.
            key: The key.
            refresh: Whether the block makes it even if it is there.
        """
        with self.lock(step, key), ExitStack() as stack:
            if self.remote and (refresh or self.damage(step, key)):
                purpose = f"{step} waits for another machine, which has the same to make"
                stack.enter_context(self.remote.lease(f"{step}/{key}", purpose))
            yield
            self.push(step, key)

    def entries(self) -> Iterator[tuple[str, str]]:
        """The step and the key of every artifact, damaged ones too."""
        for path in sorted(self.root.glob("*/*")):
            if path.is_dir() and not path.name.startswith(".") and not self._is_own(path.parent):
                yield path.parent.name, path.name

    def leftovers(self) -> Iterator[tuple[str, str, Path]]:
        """The step, the key and the folder of what killed runs have left; each key is locked."""
        from filelock import Timeout

        half = [path for end in ("partial", "discarded") for path in self.root.glob(f"*/.*.{end}")]
        half = [path for path in half if not self._is_own(path.parent)]
        for path in sorted([*half, *self.root.glob(f"{_SCRATCH}/*/*")]):
            step, key = path.parent.name, path.name.removeprefix(".").partition(".")[0]
            with suppress(Timeout), self.lock(step, key, wait=False):
                yield step, key, path

    def locks(self) -> Iterator[tuple[str, str]]:
        """The step and the key of every lock, held or not."""
        for path in sorted(self.root.glob("*/.*.lock")):
            if not self._is_own(path.parent):
                yield path.parent.name, path.stem.removeprefix(".")

    def _is_own(self, folder: Path) -> bool:
        return folder.name in (_SCRATCH, _LAST, _HOLDS, ROOTS)

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
        while True:
            self.discard(step, key)
            try:
                self.partial(step, key).rename(self.folder(step, key))
                return
            except OSError as error:  # a reader has just found it in the remote store
                if error.errno != ENOTEMPTY:
                    raise

    def clear(self, step: str, key: str) -> None:
        """Removes leftovers of a key, except its scratch; the caller holds its lock."""
        for end in ("partial", "discarded"):
            shutil.rmtree(self.partial(step, key).with_suffix(f".{end}"), ignore_errors=True)

    def partial(self, step: str, key: str) -> Path:
        """The folder where an artifact is written before it is published."""
        return self.root / step / f".{key}.partial"

    @contextmanager
    def lock(self, step: str, key: str, *, wait: bool = True, purpose: str = "") -> Iterator[None]:
        """Holds the lock of a key, so that only one of two runs makes the artifact.

        Args:
            step: The step of the key.
            key: The key to lock.
            wait: Whether to wait until another process releases it, which is shown.
            purpose: The sentence about a wait, if it is not for the same work.

        Raises:
            filelock.Timeout: Another process holds it, and `wait` is false.
            ValueError: The file system has no locks.
        """
        path = self.lock_file(step, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        default = f"{step} waits for another run, which has the same to make"
        with locked(path, wait=wait, purpose=purpose or default):
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

    def scratch_from(self, step: str, key: str, state: str) -> tuple[Path, bool]:
        """The scratch of a step that reads certain files; emptied if it was made from others.

        The caller holds the key's lock and has found the files undamaged. Of files that have
        changed since, or were replaced, nobody knows what a step read while it made its scratch.

        Args:
            step: The step.
            key: The key of the step's output.
            state: What identifies the files, as `state_of` gives it.

        Returns:
            The folder, and whether a try before had other files.
        """
        folder = self.scratch(step, key)
        record = folder / _FILES
        try:
            recorded = json.loads(record.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            recorded = None
        if recorded and recorded["state"] == state:
            return folder, recorded["is_stale"]
        is_stale = any(folder.iterdir())
        shutil.rmtree(folder)
        folder.mkdir()
        write_json(record, {"state": state, "is_stale": is_stale})
        return folder, is_stale

    def forget(self, step: str, key: str) -> None:
        """Removes a key's scratch, so that the step starts anew; the caller holds its lock."""
        shutil.rmtree(self.scratch(step, key))

    def last_plan(self, workload: str, step: str) -> Path:
        """The file that keeps the last plan of a step."""
        return self.root / _LAST / workload / f"{step}.json"

    def use(self, step: str, key: str) -> None:
        """Records that an artifact or its scratch is used now; the caller holds the key's lock."""
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
