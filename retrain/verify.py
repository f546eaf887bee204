"""Whether artifacts are still as they were made, by the digests of their files."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from retrain.errors import DamagedArtifactError
from retrain.step import Input
from retrain.store import Artifact, Leftover, Store, sha256_of

# They read and hash while Python does something else. Half of the cores are left to the step.
THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))


@dataclass
class Verifier:
    """Checks what a run took from the store before it believes what came of it.

    Each artifact is read once. What the run itself has made is not read.

    Attributes:
        store: Where the artifacts are.
        run: The run, by its id.
    """

    store: Store
    run: str
    _whole: set[tuple[str, str]] = field(default_factory=set)

    @contextmanager
    def checking(self, inputs: Sequence[Input]) -> Iterator[None]:
        """Checks inputs while the block runs, by threads.

        Raises:
            DamagedArtifactError: At the end of the block, even if that raises something else: an
                input is not as it was made. It is out of the store then.
        """
        new = [each for each in inputs if isinstance(each, Artifact) and self._is_to_check(each)]
        if not new:
            yield
            return
        stop = Event()
        with ThreadPoolExecutor(THREADS) as pool:
            try:
                checks = [_start(pool, self.store, each.step, each.key, stop) for each in new]
                try:
                    yield
                except Exception as error:
                    self._judge(new, checks, error)
                    raise
                self._judge(new, checks, None)
            finally:
                stop.set()  # an interrupted run does not read on

    def _is_to_check(self, artifact: Artifact) -> bool:
        return (
            artifact.folder.is_relative_to(self.store.root)
            and artifact.provenance["run"] != self.run
            and (artifact.step, artifact.key) not in self._whole
        )

    def _judge(
        self, artifacts: Sequence[Artifact], checks: Sequence["_Check"], error: Exception | None
    ) -> None:
        for artifact, check in zip(artifacts, checks, strict=True):
            said = check()
            if said is None and self._is_replaced(artifact):
                said = "it was made again with another output"
            if said:
                take_out(self.store, artifact.step, artifact.key)
                raise DamagedArtifactError(artifact.step, artifact.key, said) from error
            self._whole.add((artifact.step, artifact.key))

    def _is_replaced(self, artifact: Artifact) -> bool:
        found = self.store.find(artifact.step, artifact.key)
        return found is None or found.digest != artifact.digest


def until_whole(call: Callable[[], None], note: Callable[[DamagedArtifactError], None]) -> None:
    """Calls something again as long as artifacts turn out damaged, once for each of them.

    Args:
        call: Takes artifacts from the store, or makes them there.
        note: Told of the damage.

    Raises:
        DamagedArtifactError: An artifact is damaged that was made again already.
    """
    seen: set[tuple[str, str]] = set()
    while True:
        try:
            return call()
        except DamagedArtifactError as error:
            if (error.step, error.key) in seen:
                error.add_note("It was made again already in this run: is the disk in order?")
                raise
            seen.add((error.step, error.key))
            note(error)


@dataclass(frozen=True)
class Damage:
    """An artifact that is not as it was made.

    Attributes:
        step: Its step.
        key: Its key.
        said: What is wrong with it.
    """

    step: str
    key: str
    said: str


def verify(store: Store, progress: Callable[[int, int], None]) -> list[Damage]:
    """Reads all artifacts of a store.

    Args:
        store: Which.
        progress: Told, after each artifact, how many of how many have been read.

    Returns:
        Those that are damaged, but for what a run is about to make again.
    """
    from filelock import Timeout

    damaged, keys, stop = [], list(store.entries()), Event()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for number, (step, key) in enumerate(keys, 1):
                if _start(pool, store, step, key, stop)():
                    # Once more: it may just have been replaced.
                    with suppress(Timeout), store.lock(step, key, wait=False):
                        said = _start(pool, store, step, key, stop)()
                        if said and store.folder(step, key).exists():
                            damaged.append(Damage(step, key, said))
                progress(number, len(keys))
        except BaseException:
            stop.set()
            raise
    return damaged


def leftovers(store: Store) -> list[Leftover]:
    """What killed runs left behind, without what a run that is going on works with."""
    from filelock import Timeout

    left = []
    for each in store.leftovers():
        with suppress(Timeout), store.lock(each.step, each.key, wait=False):
            left.append(each)
    return left


def take_out(store: Store, step: str, key: str) -> None:
    """Takes an artifact out of the store if it is damaged, so that the next run makes it."""
    with store.lock(step, key):
        with ThreadPoolExecutor(THREADS) as pool:
            said = _start(pool, store, step, key, Event())()
        if said:  # somebody may have made it again
            store.discard(step, key)


_Check = Callable[[], str | None]


def _start(pool: ThreadPoolExecutor, store: Store, step: str, key: str, stop: Event) -> _Check:
    """Starts to read an artifact.

    Returns:
        What waits for the end of that, and says what is wrong; None if nothing is.
    """
    manifest, said = store.look(step, key)
    if said:
        return lambda: said
    folder, files = store.folder(step, key), manifest["files"]
    parts: list[Future[str | None]] = [
        pool.submit(_first_damaged, folder, files[number::THREADS], stop)
        for number in range(THREADS)
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
