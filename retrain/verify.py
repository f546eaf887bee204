"""Checks whether artifacts have changed since they were made, by the digests of their files."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

from retrain.errors import DamagedArtifactError
from retrain.step import Input
from retrain.store import Artifact, Leftover, Store, sha256_of, state_of

MAX_THREADS = 8


@cache
def thread_count() -> int:
    """The number of threads that read and hash files. Half of the CPUs are left to the step."""
    from joblib import cpu_count  # respects the limits of a container

    return max(1, min(MAX_THREADS, int(cpu_count()) // 2))


@dataclass
class Verifier:
    """Checks the artifacts that a run takes from the store before they are used.

    Each artifact is read once, and again if its files were changed since.

    Attributes:
        store: Where the artifacts are.
    """

    store: Store
    _undamaged: dict[tuple[str, str], str] = field(default_factory=dict)  # what `state_of` gave

    def check(self, inputs: Sequence[Input]) -> None:
        """Reads the artifacts among some inputs.

        Raises:
            DamagedArtifactError: One has changed since it was made; it was removed from the store.
        """
        stop = Event()
        with ThreadPoolExecutor(thread_count()) as pool:
            try:
                for each in inputs:
                    if isinstance(each, Artifact) and self._is_stored(each):
                        self._check(each, pool, stop)
            finally:
                stop.set()  # an interrupted run does not wait for the threads

    def trust(self, artifact: Artifact) -> None:
        """Takes an artifact as undamaged: the run has just made it."""
        self._undamaged[artifact.step, artifact.key] = state_of(artifact.folder)

    def _is_stored(self, artifact: Artifact) -> bool:
        return artifact.folder.is_relative_to(self.store.root)

    def _check(self, artifact: Artifact, pool: ThreadPoolExecutor, stop: Event) -> None:
        identity, state = (artifact.step, artifact.key), state_of(artifact.folder)
        if self._undamaged.get(identity) == state:
            return
        reason = _start(pool, self.store, *identity, stop)()
        if reason is None and self._is_replaced(artifact):
            reason = "it was made again with another output"
        if reason:
            discard_if_damaged(self.store, *identity)
            raise DamagedArtifactError(*identity, reason)
        self._undamaged[identity] = state

    def _is_replaced(self, artifact: Artifact) -> bool:
        found = self.store.find(artifact.step, artifact.key)
        return found is None or found.digest != artifact.digest


def retry_damaged(
    call: Callable[[], None], on_damage: Callable[[DamagedArtifactError], None]
) -> None:
    """Calls a function again when an artifact is damaged, once for each artifact.

    Args:
        call: Takes artifacts from the store, or makes them there.
        on_damage: Called with the error before each retry.

    Raises:
        DamagedArtifactError: An artifact was made again and is damaged again.
    """
    seen: set[tuple[str, str]] = set()
    while True:
        try:
            return call()
        except DamagedArtifactError as error:
            if (error.step, error.key) in seen:
                error.add_note("This run has already made it again: check the disk for errors.")
                raise
            seen.add((error.step, error.key))
            on_damage(error)


@dataclass(frozen=True)
class Damage:
    """An artifact that has changed since it was made.

    Attributes:
        step: The step that made it.
        key: Its key.
        reason: What is wrong with it.
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

    damaged, keys, stop = [], list(store.entries()), Event()
    with ThreadPoolExecutor(thread_count()) as pool:
        try:
            for number, (step, key) in enumerate(keys, 1):
                if _start(pool, store, step, key, stop)():
                    # Read again under the lock: it may just have been replaced.
                    with suppress(Timeout), store.lock(step, key, wait=False):
                        reason = _start(pool, store, step, key, stop)()
                        if reason and store.folder(step, key).exists():
                            damaged.append(Damage(step, key, reason))
                progress(number, len(keys))
        except BaseException:
            stop.set()
            raise
    return damaged


def leftovers(store: Store) -> list[Leftover]:
    """The folders that killed runs have left, without those of runs in progress."""
    from filelock import Timeout

    unused = []
    for each in store.leftovers():
        with suppress(Timeout), store.lock(each.step, each.key, wait=False):
            unused.append(each)
    return unused


def discard_if_damaged(store: Store, step: str, key: str) -> None:
    """Removes an artifact from the store if it is damaged, so that the next run makes it again."""
    with store.lock(step, key):
        with ThreadPoolExecutor(thread_count()) as pool:
            reason = _start(pool, store, step, key, Event())()
        if reason:  # not if another run has made it again
            store.discard(step, key)


_Check = Callable[[], str | None]


def _start(pool: ThreadPoolExecutor, store: Store, step: str, key: str, stop: Event) -> _Check:
    """Starts to read an artifact in the pool's threads.

    Returns:
        A function that waits for the result: what is wrong with the artifact; None if nothing is.
    """
    manifest, reason = store.inspect(step, key)
    if reason:
        return lambda: reason
    folder, files, threads = store.folder(step, key), manifest["files"], thread_count()
    parts: list[Future[str | None]] = [
        pool.submit(_first_damaged, folder, files[number::threads], stop)
        for number in range(threads)
    ]
    return lambda: next(filter(None, [part.result() for part in parts]), None)


def _first_damaged(folder: Path, files: Sequence[Mapping[str, Any]], stop: Event) -> str | None:
    for file in files:
        try:
            if sha256_of(folder / file["path"], stop) != file["sha256"]:
                return f"{file['path']} has changed"
        except OSError as error:
            return f"{file['path']} cannot be read: {error.strerror}"
    return None
