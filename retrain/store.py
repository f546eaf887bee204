"""Stores the outputs of the steps: one folder with a manifest each, published atomically.

No file in the store is ever executed: they are JSON, Parquet, NumPy arrays without objects,
safetensors, and files for people.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from errno import ENOTEMPTY
from functools import partial
from pathlib import Path
from time import time
from typing import Any

from retrain.atomic import replacing, write_json
from retrain.errors import DamagedArtifactError, RemoteError
from retrain.locks import locked
from retrain.outputs import MANIFEST, Artifact as Artifact, Plan, digest_of_output
from retrain.project import Project
from retrain.remote import THREADS, Remote
from retrain.runs import console
from retrain.step import TrialContext

_SCRATCH = "scratch"
_LAST = "last"
_HOLDS = ".holds"
_KILLED_SECONDS = 7 * 86400.0
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
            manifest = _parse((folder / MANIFEST).read_bytes(), key)
        except FileNotFoundError:
            return {}, "its artifact is gone"
        except (OSError, ValueError, KeyError, TypeError):
            return {}, f"its {MANIFEST} cannot be read"
        if manifest is None:
            return {}, f"its {MANIFEST} has changed"
        for file in manifest["files"]:
            try:
                size = (folder / file["path"]).stat().st_size
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
        path = _manifest_path(step, key)
        if patient:
            content = remote.read(path, patient=True)
        else:
            content = remote.attempt(lambda: remote.read(path))
        try:
            manifest = content and _parse(content, key)
        except (ValueError, KeyError, TypeError):
            manifest = None
        if not manifest:
            return None
        manifest["remote"] = remote.url
        folder.parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder) as aside:
            aside.mkdir()
            write_json(aside / MANIFEST, manifest)
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
        step, key, folder = artifact.step, artifact.key, self.folder(artifact.step, artifact.key)
        if self.remote is None:
            return folder
        self._adopt(step, key, patient=True)
        if not self._missing(step, key, wanted):
            return folder
        purpose = f"what {step} has made is fetched by another process"
        with self.lock(step, key, purpose=purpose):
            missing = self._missing(step, key, wanted)
            aside, size = self.partial(step, key), sum(file["bytes"] for file in missing)
            counted = console.counted(f"fetching the output of {step}", size, "bytes")
            try:
                with counted as show, ThreadPoolExecutor(THREADS) as pool:
                    fetch = partial(self._fetch_file, self.remote, folder, aside, show)
                    damage = next(filter(None, pool.map(fetch, missing)), None)
                if damage:
                    self._refuse(step, key)
                    raise DamagedArtifactError(step, key, f"in the remote store, {damage}")
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        return folder

    def _missing(
        self, step: str, key: str, wanted: Callable[[str], bool]
    ) -> list[Mapping[str, Any]]:
        """The files of an artifact that are wanted and only the remote store has."""
        manifest, folder = self.inspect(step, key)[0], self.folder(step, key)
        return [
            file
            for file in manifest.get("files", ())
            if self.can_fetch(manifest)
            and wanted(file["path"])
            and not (folder / file["path"]).exists()
        ]

    def _fetch_file(
        self,
        remote: Remote,
        folder: Path,
        aside: Path,
        show: Callable[[int], object],
        file: Mapping[str, Any],
    ) -> str | None:
        """Brings a file; returns what is wrong with it, None if nothing is."""
        place, target = _file_path(file["sha256"]), folder / file["path"]
        half = aside / file["path"]
        for path in (half, target):
            path.parent.mkdir(parents=True, exist_ok=True)
        digest = remote.download(place, half, show)
        if digest == file["sha256"]:
            half.rename(target)
            return None
        if digest:
            with suppress(RemoteError):  # so that it is sent again
                remote.delete([place])
        return f"{file['path']} {'has changed' if digest else 'is gone'}"

    def _refuse(self, step: str, key: str) -> None:
        """Forgets an artifact, which has lost a file, here and in the remote store."""
        manifest, path = self.inspect(step, key)[0], _manifest_path(step, key)
        self.discard(step, key)
        assert self.remote
        with suppress(RemoteError, ValueError):
            if json.loads(self.remote.read(path) or "{}").get("files") == manifest["files"]:
                self.remote.delete([path])

    def push(self, step: str, key: str) -> None:
        """Sends an artifact to the remote store, if that does not have it; the files first.

        If the remote is away, this is told, and a later run sends the artifact. The caller holds
        the key's lock.
        """
        remote, (manifest, damage) = self.remote, self.inspect(step, key)
        if remote is None or damage or self.can_fetch(manifest):
            return
        known = {name: value for name, value in manifest.items() if name != "remote"}
        folder, contents = self.folder(step, key), {f["sha256"]: f for f in manifest["files"]}
        size = sum(file["bytes"] for file in contents.values())

        def send() -> bool:
            counted = console.counted(f"sending the output of {step}", size, "bytes")
            with counted as show, ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(partial(_send_file, remote, folder, show), contents.values()))
            remote.write(_manifest_path(step, key), json.dumps(known, sort_keys=True).encode())
            return True

        if remote.attempt(send):
            write_json(folder / MANIFEST, known | {"remote": remote.url})

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


def _parse(content: bytes, key: str) -> dict[str, Any] | None:
    """A manifest; None if it is not that of the key, or was changed."""
    manifest: dict[str, Any] = json.loads(content)
    is_consistent = (
        manifest["digest"] == digest_of_output(manifest["facts"], manifest["files"])
        and Plan(**manifest["plan"]).key == key
        and "run" in manifest["provenance"]
    )
    return manifest if is_consistent else None


def _manifest_path(step: str, key: str) -> str:
    return f"artifacts/{step}/{key}.json"


def _file_path(sha256: str) -> str:
    return f"files/{sha256[:2]}/{sha256}"


def _send_file(
    remote: Remote, folder: Path, show: Callable[[int], object], file: Mapping[str, Any]
) -> None:
    """Sends a file to the remote store, if that does not have it."""
    path = _file_path(file["sha256"])
    if remote.size(path) != file["bytes"]:
        remote.write(path, folder / file["path"])
    show(file["bytes"])


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
