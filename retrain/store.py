"""Stores the outputs of the steps: one folder with a manifest each, published atomically.

No file in the store is ever executed: they are JSON, Parquet, NumPy arrays without objects,
safetensors, and files for people.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retrain.atomic import write_json
from retrain.locks import locked
from retrain.outputs import MANIFEST, Artifact as Artifact, digest_of_output
from retrain.project import Project
from retrain.runs import console
from retrain.step import Plan, TrialContext

_SCRATCH = "scratch"
_LAST = "last"
_HOLDS = ".holds"
ROOTS = "roots"
_FILES = "files.json"  # of a scratch: which files it was made from


@dataclass(frozen=True)
class Leftover:
    """A folder that a killed run has left in the store.

    Attributes:
        step: The name of the step.
        key: The key of the step's plan.
        path: The folder.
    """

    step: str
    key: str
    path: Path

    def remove(self) -> None:
        """Removes the folder; the caller holds the key's lock."""
        shutil.rmtree(self.path, ignore_errors=True)


@dataclass(frozen=True)
class Store:
    """The artifacts of one project, by step and key: `<root>/<step>/<key>/`."""

    root: Path

    def folder(self, step: str, key: str) -> Path:
        """The folder of an artifact, whether it exists or not."""
        return self.root / step / key

    def find(self, step: str, key: str) -> Artifact | None:
        """The artifact with a key; None if it is missing or damaged, as `damage` finds."""
        manifest, damage = self.inspect(step, key)
        if damage:
            return None
        folder = self.folder(step, key)
        return Artifact(
            step, key, manifest["digest"], folder, manifest["facts"], manifest["provenance"]
        )

    def damage(self, step: str, key: str) -> str | None:
        """What is wrong with an artifact; None if nothing is.

        Only the manifest and the names and sizes of the files are checked, not their content.
        """
        return self.inspect(step, key)[1]

    def inspect(self, step: str, key: str) -> tuple[dict[str, Any], str | None]:
        """An artifact's manifest and its `damage`; a damaged manifest is returned empty."""
        folder = self.folder(step, key)
        try:
            manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            files = manifest["files"]
            is_consistent = (
                manifest["digest"] == digest_of_output(manifest["facts"], files)
                and Plan(**manifest["plan"]).has(key)
                and "run" in manifest["provenance"]
            )
        except FileNotFoundError:
            return {}, "its artifact is gone"
        except (OSError, ValueError, KeyError, TypeError):
            return {}, f"its {MANIFEST} cannot be read"
        if not is_consistent:
            return {}, f"its {MANIFEST} has changed"
        for file in files:
            try:
                size = (folder / file["path"]).stat().st_size
            except OSError:
                return manifest, f"{file['path']} is gone"
            if size != file["bytes"]:
                return manifest, f"{file['path']} has changed its size"
        return manifest, None

    def entries(self) -> Iterator[tuple[str, str]]:
        """The step and the key of every artifact, damaged ones too."""
        for path in sorted(self.root.glob("*/*")):
            if path.is_dir() and not path.name.startswith(".") and not self._is_own(path.parent):
                yield path.parent.name, path.name

    def leftovers(self) -> Iterator[Leftover]:
        """The unfinished folders of killed runs, and of runs in progress."""
        for path in sorted((self.root / _SCRATCH).glob("*/*")):
            yield Leftover(path.parent.name, path.name, path)
        for path in sorted(self.root.glob("*/.*")):
            if path.suffix in (".partial", ".discarded") and not self._is_own(path.parent):
                yield Leftover(path.parent.name, path.stem.removeprefix("."), path)

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

    def clear(self, step: str, key: str) -> None:
        """Removes leftovers of a key, except its scratch; the caller holds its lock."""
        for end in ("partial", "discarded"):
            shutil.rmtree(self.partial(step, key).with_suffix(f".{end}"), ignore_errors=True)

    def partial(self, step: str, key: str) -> Path:
        """The folder where an artifact is written before it is published."""
        return self.root / step / f".{key}.partial"

    @contextmanager
    def lock(
        self, step: str, key: str, *, wait: bool = True, run: str | None = None
    ) -> Iterator[None]:
        """Holds the lock of a key, so that only one of two runs makes the artifact.

        Args:
            step: The step of the key.
            key: The key to lock.
            wait: Whether to wait until another process releases it, which a line says.
            run: The id of the run that is going to make the artifact, for that line.

        Raises:
            filelock.Timeout: Another process holds it, and `wait` is false.
            ValueError: The file system has no locks.
        """
        from filelock import Timeout

        path = self.lock_file(step, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            try:
                held.enter_context(locked(path, wait=False))
            except Timeout:
                if not wait:
                    raise
                with suppress(FileNotFoundError):
                    holder = path.read_text(encoding="utf-8") or "another command"
                    console.say(f"{step} waits for {holder}, which has the same to make.")
                held.enter_context(locked(path))
            if run:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                path.write_text(f"run {run[:8]} since {now}", encoding="utf-8")
            try:
                yield
            finally:
                if run:
                    os.truncate(path, 0)

    def find_digest(self, step: str, digest: str) -> Artifact | None:
        """An artifact of a step with a digest, whatever its key is; None if there is none."""
        for name, key in self.entries():
            if name == step and (found := self.find(step, key)) and found.digest == digest:
                return found
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
            key: Its key.
            state: What identifies the files, as `state_of` gives it.

        Returns:
            The folder, and whether a try before had other files.
        """
        folder = self.scratch(step, key)
        record = folder / _FILES
        try:
            found = json.loads(record.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            found = None
        if found and found["state"] == state:
            return folder, found["is_stale"]
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

    @contextmanager
    def holding(self, run: str) -> Iterator[None]:
        """Protects the artifacts that a run uses and makes from `retrain gc` while it lasts."""
        held = self._held_by(run)
        held.parent.mkdir(parents=True, exist_ok=True)
        lock = held.with_suffix(".lock")
        with locked(lock):
            held.touch()
            try:
                yield
            finally:
                self._release(lock)

    def temporary(self, run: str) -> Path:
        """A folder for temporary files, which goes with the run that holds artifacts."""
        folder = self._held_by(run).with_suffix(".files")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def hold(self, run: str, step: str, key: str) -> None:
        """Records that a run needs an artifact; the caller holds the key's lock."""
        self._touch(step, key)
        held = self._held_by(run)
        if held.exists():
            with held.open("a", encoding="utf-8") as file:
                file.write(f"{step} {key}\n")

    def held(self) -> set[tuple[str, str]]:
        """The step and the key of all artifacts that runs in progress need."""
        needed: set[tuple[str, str]] = set()
        for lock, is_free in self._runs():
            if is_free:
                self._release(lock)
                continue
            with suppress(FileNotFoundError):  # it has just begun or ended
                lines = lock.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
                needed |= {(step, key) for step, key in map(str.split, lines)}
        return needed

    def killed_runs(self) -> set[str]:
        """The runs that were killed while they held artifacts, until `held` forgets them."""
        killed = {lock.stem.rpartition("-")[0] for lock, is_free in self._runs() if is_free}
        return killed - {"dvc"}

    def _runs(self) -> Iterator[tuple[Path, bool]]:
        """The locks of runs that hold artifacts, and whether each is free: its run was killed.

        A free one is held until the next is asked for.
        """
        from filelock import Timeout

        for lock in (self.root / _HOLDS).glob("*.lock"):
            with ExitStack() as stack:
                try:
                    stack.enter_context(locked(lock, wait=False))
                    is_free = True
                except Timeout:
                    is_free = False
                yield lock, is_free

    def last_used(self, step: str, key: str) -> float:
        """When a run last used or made an artifact, or wrote to its scratch.

        Returns:
            Seconds since the epoch; 0 if there is neither.
        """
        folder, scratch = self.folder(step, key), self.root / _SCRATCH / step / key
        paths = (folder, folder / MANIFEST, scratch, *scratch.rglob("*"))
        found = 0.0
        for path in paths:
            with suppress(FileNotFoundError):
                found = max(found, path.stat().st_mtime)
        return found

    def _touch(self, step: str, key: str) -> None:
        """Records that an artifact, and what is half made of it, is used now."""
        for path in (self.folder(step, key) / MANIFEST, self.root / _SCRATCH / step / key):
            with suppress(FileNotFoundError):
                os.utime(path)

    def _release(self, lock: Path) -> None:
        """Removes the files of a run that holds nothing any more; the caller has the run's lock.

        What it held was in use until now, also if it was killed some time ago.
        """
        with suppress(FileNotFoundError):
            for line in lock.with_suffix(".txt").read_text(encoding="utf-8").splitlines():
                self._touch(*line.split())
        shutil.rmtree(lock.with_suffix(".files"), ignore_errors=True)
        lock.with_suffix(".txt").unlink(missing_ok=True)
        lock.unlink(missing_ok=True)

    def _held_by(self, run: str) -> Path:
        return self.root / _HOLDS / f"{run}-{os.getpid()}.txt"


@dataclass(frozen=True)
class RunContext:
    """The run that makes an artifact (a Prefect flow run, or `dvc`), and its project.

    Attributes:
        run: Its id.
        project: The clone.
        trial: The trial of a search that a step is run for.
    """

    run: str
    project: Project
    trial: TrialContext | None = None
