"""The trials of a search, a file each, from which it goes on after it was ended at any moment.

A process holds the lock of the trial that it runs. So it is known which one was killed, and several
processes can work at one search.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

from retrain.atomic import write_json
from retrain.locks import locked
from retrain.step import Plan, digest_of
from retrain.workload import Tune

RUNNING, COMPLETE, PRUNED, FAILED = "running", "complete", "pruned", "failed"

# A trial is compared at a quarter and at half of a whole training, and goes on if it is in the
# better half there: asynchronous successive halving (Li et al., 2020). Earlier, a warm-up or
# augmentation, which are slow at first, would decide.
FACTOR = 2
RUNGS = (4, 2)
UNPRUNED = 3  # complete trials before that


@dataclass(frozen=True)
class Trial:
    """A trial of a search: a training with values of its own.

    Attributes:
        number: From 1.
        values: By the parameter's dotted name.
        state: `running`, also of one that was killed; `complete`, `pruned` or `failed`.
        best: The entry of its best epoch in the training's history; None if it has none.
        reached: The best metric up to each epoch; larger is better: it is the opposite of a loss.
        reason: Why it failed.
        cached: Whether the store had its output.
        seconds: How long it took.
        mlflow: The id of the run of a complete one in MLflow.
    """

    number: int
    values: Mapping[str, Any]
    state: str = RUNNING
    best: Mapping[str, Any] | None = None
    reached: Sequence[float] = field(default_factory=list)
    reason: str | None = None
    cached: bool = False
    seconds: float = 0.0
    mlflow: str | None = None


@dataclass(frozen=True)
class Trials:
    """The trials of one search, in a folder.

    Attributes:
        folder: Which need not exist.
    """

    folder: Path

    def all(self) -> list[Trial]:
        """The trials, in order; some may be running."""
        return [_read(path) for path in sorted(self.folder.glob("*.json"))]

    def over(self) -> list[Trial]:
        """Those that have ended."""
        return [trial for trial in self.all() if trial.state != RUNNING]

    def write(self, trial: Trial) -> None:
        """Keeps a trial as it is now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self._file(trial.number), asdict(trial))

    @contextmanager
    def next(
        self, wanted: int, suggest: Callable[[list[Trial]], Mapping[str, Any]]
    ) -> Iterator[Trial | None]:
        """Takes a trial for this process to run: one that was killed, else a new one.

        When other processes have taken all that are left, it waits for them: one may be killed.

        Args:
            wanted: How many trials there are in all.
            suggest: Called with all trials so far; gives the values of a new one.

        Yields:
            The trial; None if all are over.
        """
        with ExitStack() as held:
            while True:
                trial, running = self._take(wanted, suggest, held)
                if trial or not running:
                    yield trial
                    return
                with self.locked(running):
                    pass

    def _take(
        self, wanted: int, suggest: Callable[[list[Trial]], Mapping[str, Any]], held: ExitStack
    ) -> tuple[Trial | None, int]:
        """A trial to run, if there is one; else the number of one that another process runs, or 0.

        Args:
            wanted: As in `next`.
            suggest: As in `next`.
            held: What holds the trial's lock then.
        """
        from filelock import Timeout

        self.folder.mkdir(parents=True, exist_ok=True)
        with self.locked():
            if len(self.over()) >= wanted:
                return None, 0
            known = self.all()
            running = [trial.number for trial in known if trial.state == RUNNING]
            for number in running:
                with suppress(Timeout), ExitStack() as free:
                    free.enter_context(self.locked(number, wait=False))
                    if (trial := _read(self._file(number))).state == RUNNING:
                        held.push(free.pop_all())
                        return trial, number
            if len(known) >= wanted:
                return None, running[0]
            trial = Trial(len(known) + 1, suggest(known))
            held.enter_context(self.locked(trial.number))
            self.write(trial)
            return trial, trial.number

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.json"

    @contextmanager
    def locked(self, number: int = 0, *, wait: bool = True) -> Iterator[None]:
        """Holds the lock of a trial; that of all of them is number 0.

        Raises:
            filelock.Timeout: Another process holds it, and `wait` is false.
        """
        with locked(self._file(number).with_suffix(".lock"), wait=wait):
            yield

    def forget(self) -> None:
        """Removes all of them."""
        for path in self.folder.glob("*.json"):
            path.unlink()


def _read(path: Path) -> Trial:
    return Trial(**json.loads(path.read_text(encoding="utf-8")))


def search_key(training: Plan, tune: Tune) -> str:
    """SHA-256 (hex) of what makes two searches the same: the training but for the space, the seed.

    Args:
        training: The plan of a trial, which has the version of the data too.
        tune: The space and the seed.
    """
    config = {
        name: value
        for name, value in training.config.items()
        if not any(name == each or name.startswith(f"{each}.") for each in tune.space)
    }
    space = {name: searched.model_dump(mode="json") for name, searched in tune.space.items()}
    same = asdict(replace(training, config=config)) | {"space": space, "seed": tune.seed}
    return digest_of(same)


def bounds(before: Sequence[Trial]) -> dict[int, float]:
    """What a trial has to have reached, by the number of an epoch, so that it is not pruned.

    Nothing is pruned before there are some complete trials, whose lengths say what a whole training
    is.

    Args:
        before: All earlier trials.
    """
    complete = [trial for trial in before if trial.state == COMPLETE]
    if len(complete) < UNPRUNED:
        return {}
    longest = max(len(trial.reached) for trial in complete)
    found = {}
    for rung in (ceil(longest / part) for part in RUNGS):
        others = sorted(each.reached[rung - 1] for each in before if len(each.reached) >= rung)
        found[rung] = others[-max((len(others) + 1) // FACTOR, 1)]
    return found
