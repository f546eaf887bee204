"""Does units of work on a machine of a cluster that does not see the store of the run.

The machine has a store of its own. What a unit reads is fetched there from the remote store, once
for all workers of the machine; what it writes is sent to the remote store and removed. The steps'
functions do not know of it: where a path below the run's store is sent to a machine, it becomes
one below the machine's store.
"""

import io
import pickle
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from retrain import exchange
from retrain.errors import DamagedArtifactError, RemoteError
from retrain.project import CODE, Project
from retrain.remote import Remote
from retrain.servers import machines
from retrain.store import Artifact, Store

STORE, CLONE = "store", "clone"
DAY = 86400.0  # seconds
UNUSED_DAYS = 7.0  # after which a machine forgets what it has fetched or begun


def pack(value: Any, project: Project) -> bytes:
    """Pickles a value with its paths below the store, or the clone, of a run."""
    from ray import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # Ray is not typed
        def persistent_id(self, part: Any) -> tuple[str, str] | None:
            if isinstance(part, Path):
                for name, root in ((STORE, project.store), (CLONE, project.root)):
                    if part.is_relative_to(root):
                        return name, part.relative_to(root).as_posix()
            return None

    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, place: tuple[str, str]) -> Path:
        root, path = place
        return (machines.node_root() if root == STORE else CODE.parent) / path


def unpack(packed: bytes) -> Any:
    """What `pack` was given, with the paths below the store, or the code, of this machine."""
    return _Unpickler(io.BytesIO(packed)).load()


class Errands:
    """Calls a function on units that other machines have packed; on one with the files for it."""

    def __init__(self, url: str, function: bytes, device: str | None = None) -> None:
        """Loads nothing yet.

        Args:
            url: The remote store.
            function: Packed: it does the work on a unit; or, with a device, makes what does it.
            device: The device for what makes the function.
        """
        self._url, self._packed, self._device = url, function, device

    @cached_property
    def _function(self) -> Callable[[Any], Any]:
        forget_unused(Store(machines.node_root()))
        function: Callable[[Any], Any] = unpack(self._packed)
        return function if self._device is None else function(self._device)

    def __call__(self, errand: bytes) -> tuple[Any, list[dict[str, Any]]]:
        """Does the work on a unit.

        Args:
            errand: Packed: the unit, the files of artifacts and of the scratch that it reads, these
                with `bytes` and `sha256`, and the files that it writes.

        Returns:
            What the function returned, and `bytes` and `sha256` of each file that it has written.

        Raises:
            DamagedArtifactError: A file has changed in the remote store, or is gone there.
            RemoteError: The remote store does not answer.
        """
        unit, reads, copies, writes = unpack(errand)
        remote = Remote(self._url)
        store = Store(machines.node_root(), remote)
        bring(store, reads)
        _receive(store, remote, copies)
        for path in writes:
            path.parent.mkdir(parents=True, exist_ok=True)
        result, sent = self._function(unit), []
        for path in writes:
            sent.append(exchange.send_file(remote, path))
            path.unlink()
        return result, sent


def _receive(
    store: Store, remote: Remote, copies: Sequence[tuple[Path, Mapping[str, Any]]]
) -> None:
    """Fetches what is not in the store of files that belong to no artifact."""
    for path, entry in copies:
        if not path.exists():
            with store.lock("copies", entry["sha256"]):
                file = {**entry, "path": path.relative_to(store.root).as_posix()}
                aside = store.partial("copies", entry["sha256"])
                if not path.exists() and (
                    damage := exchange.receive(remote, [file], store.root, aside)
                ):
                    raise RemoteError(damage)


def bring(store: Store, paths: Iterable[Path]) -> None:
    """Fetches files of artifacts that are not in a store."""
    wanted: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in paths:
        step, key, name = path.relative_to(store.root).as_posix().split("/", 2)
        missing = wanted[step, key]
        if not path.exists():
            missing.add(name)
    for (step, key), names in wanted.items():
        if names:
            fetch(store, step, key, names.__contains__)
        store.use(step, key)


def fetch(store: Store, step: str, key: str, wanted: Callable[[str], bool]) -> Path:
    """Fetches files of an artifact to a machine that may have some of them.

    Returns:
        The artifact's folder.

    Raises:
        DamagedArtifactError: The remote store does not have it as it was made.
        RemoteError: The remote store does not answer.
    """
    with store.lock(step, key):
        if store.inspect(step, key)[1]:
            store.discard(step, key)  # the remote may have what is damaged here
        store.use(step, key)
    folder = store.fetch(Artifact(step, key, "", store.folder(step, key), {}), wanted)
    if not folder.exists():
        raise DamagedArtifactError(step, key, "it is gone in the remote store")
    return folder


def forget_unused(store: Store) -> None:
    """Removes what nobody has used for long from the store of a machine, which has only copies."""
    from filelock import Timeout

    since = store.runs.oldest() - UNUSED_DAYS * DAY
    for step, key in store.entries():
        with suppress(Timeout), store.lock(step, key, wait=False):
            if store.last_used(step, key) < since:
                store.discard(step, key)
    for step, key, path in store.leftovers():
        with suppress(FileNotFoundError):  # another process has just made it whole
            if max(store.last_used(step, key), path.stat().st_mtime) < since:
                shutil.rmtree(path)
