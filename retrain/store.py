"""Stores the outputs of the steps: one folder with a manifest each, published atomically.

No file in the store is ever executed: they are JSON, Parquet, NumPy arrays without objects,
safetensors, and files for people.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

from retrain.atomic import write_json
from retrain.locks import locked
from retrain.outputs import MANIFEST, Artifact as Artifact, Plan, digest_of_output
from retrain.project import Project
from retrain.step import TrialContext

_SCRATCH = "scratch"
_LAST = "last"
_HOLDS = ".holds"
_KILLED_SECONDS = 7 * 86400.0
ROOTS = "roots"
_FILES = "files.json"  # of a scratch: which files it was made from


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
        return Artifact.of(step, key, self.folder(step, key), manifest)

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
                and Plan(**manifest["plan"]).key == key
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

    def clear(self, step: str, key: str) -> None:
        """Removes leftovers of a key, except its scratch; the caller holds its lock."""
        for end in ("partial", "discarded"):
            shutil.rmtree(self.partial(step, key).with_suffix(f".{end}"), ignore_errors=True)

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
        with locked(
            path, wait=wait, purpose=f"{step} waits for another run, which has the same to make"
        ):
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

    @contextmanager
    def holding(self, run: str) -> Iterator[None]:
        """Protects what a run uses and makes from `retrain gc` while it lasts."""
        hold = self._hold(run)
        hold.parent.mkdir(parents=True, exist_ok=True)
        with locked(hold):
            try:
                yield
            finally:
                self._release(hold)

    def temporary(self, run: str) -> Path:
        """A folder for temporary files, which goes with the run that is `holding` the store."""
        folder = self._hold(run).with_suffix(".files")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def killed_runs(self) -> set[str]:
        """The runs that were killed, until they are forgotten."""
        killed = {hold.stem.rpartition("-")[0] for hold in self._free_holds()}
        return killed - {"dvc"}

    def forget_killed_runs(self) -> None:
        """Removes what killed runs have left, except their scratch."""
        for hold in self._free_holds():
            self._release(hold)

    def oldest_run(self) -> float:
        """When the oldest run began that goes on, or was killed and not forgotten for a week.

        Returns:
            Seconds since the epoch; now if there is none.
        """
        began, killed = [time()], set(self._free_holds())
        for hold in (self.root / _HOLDS).glob("*.lock"):
            with suppress(FileNotFoundError):  # it has ended
                start = hold.stat().st_mtime
                if hold not in killed or time() - start < _KILLED_SECONDS:
                    began.append(start)
        return min(began)

    def _free_holds(self) -> Iterator[Path]:
        """The locks of killed runs; each is held until the next is asked for."""
        from filelock import Timeout

        for hold in (self.root / _HOLDS).glob("*.lock"):
            with suppress(Timeout), locked(hold, wait=False):
                yield hold

    def _release(self, hold: Path) -> None:
        """Removes the files of a run that has ended; the caller has its lock."""
        shutil.rmtree(hold.with_suffix(".files"), ignore_errors=True)
        hold.unlink(missing_ok=True)

    def _hold(self, run: str) -> Path:
        return self.root / _HOLDS / f"{run}-{os.getpid()}.lock"

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
        paths = (folder, folder / MANIFEST, scratch, *scratch.rglob("*"))
        latest = 0.0
        for path in paths:
            with suppress(FileNotFoundError):
                latest = max(latest, path.stat().st_mtime)
        return latest


@dataclass(frozen=True)
class RunContext:
    """The run that makes an artifact (a Prefect flow run, or `dvc`), and its project.

    Attributes:
        run: The id of the run.
        project: The clone that the run is in.
        trial: The trial of a search that a step is run for.
    """

    run: str
    project: Project
    trial: TrialContext | None = None
