"""Keeps what a user's training function reports to Ray Train: its metrics and checkpoints.

`ray.train.report` and `ray.train.get_checkpoint` are what the function calls. Ray Train keeps a
checkpoint on its storage while a training runs on workers, but not when it runs in this process,
and not for the next process after a kill. So the files of a checkpoint are copied to the scratch
folder, which all workers see, and `get_checkpoint` returns them from there.
"""

import shutil
from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Real
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from retrain.workload import Best
from tasks.train import folders
from tasks.train.selection import is_better

if TYPE_CHECKING:
    from ray.train import Checkpoint

FOLDER = "reports"


class ReportError(ValueError):
    """What a training function reported cannot be used."""


class Reports:
    """The reports of a training, on each of its workers."""

    def __init__(
        self,
        scratch: Path,
        rank: int,
        best: Best,
        kept: int,
        barrier: Callable[[], None],
        progress: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        """Starts without reports.

        Args:
            scratch: The folder that remains after a kill.
            rank: Of this worker.
            best: Which report is the best.
            kept: How many of the newest checkpoints are kept.
            barrier: Waits for all workers.
            progress: Called by the first worker with the history after each report.
        """
        self.history: list[dict[str, Any]] = []
        self._folder = scratch / FOLDER
        self._rank, self._best, self._kept = rank, best, kept
        self._barrier, self._progress = barrier, progress
        self._ended = monotonic()

    def add(self, metrics: Mapping[str, Any], checkpoint: "Checkpoint | None") -> None:
        """Adds a report; all workers do it together.

        The first worker's metrics count. The files of all workers' checkpoints make up one.

        Raises:
            ReportError: A metric is not a finite number.
        """
        number = len(self.history) + 1
        entry: dict[str, Any] = {
            name: float(value) for name, value in metrics.items() if _is_number(value)
        }
        for name, value in entry.items():
            if not isfinite(value):
                raise ReportError(
                    f"train.function reported {name} = {value} in its report {number}: the "
                    "training diverged. Lower its learning rate."
                )
        target, partial = self._folder / f"{number:06d}", self._folder / f"{number:06d}.partial"
        if self._rank == 0:
            folders.remove_from(self._folder, number)
            for left in (partial, target):  # by a try that was interrupted
                shutil.rmtree(left, ignore_errors=True)
            partial.mkdir(parents=True)
        self._barrier()
        if checkpoint:
            with checkpoint.as_directory() as source:
                shutil.copytree(source, partial, dirs_exist_ok=True)
        self._barrier()
        now = monotonic()
        entry |= {"epoch": number, "seconds": now - self._ended}
        self._ended = now
        self.history.append(entry)
        if self._rank == 0:
            self._finish(number, partial, target)
            self._progress(self.history)

    def _finish(self, number: int, partial: Path, target: Path) -> None:
        """Makes a complete checkpoint valid, and removes those that are no longer needed."""
        if not any(partial.iterdir()):
            partial.rmdir()
            return
        partial.rename(target)
        self.history[-1]["checkpoint"] = True
        folders.seal(target, {"history": self.history})
        best = self.best()
        folders.remove_old(self._folder, self._kept, self.folder(best) if best else None)

    def last(self) -> Path | None:
        """The newest undamaged checkpoint; the history becomes that up to it."""
        found = folders.newest(self._folder)
        if found is None:
            return None
        folder, facts = found
        self.history = facts["history"]
        return folder

    def best(self) -> dict[str, Any] | None:
        """The best of the reports with a checkpoint; None if there is none."""
        found = None
        for entry in self.history:
            if entry.get("checkpoint") and self._best.metric in entry:
                found = entry if is_better(entry, found, self._best) else found
        return found

    def folder(self, entry: Mapping[str, Any]) -> Path:
        """The folder of a report's checkpoint.

        Args:
            entry: Of the history.
        """
        return self._folder / f"{entry['epoch']:06d}"


def _is_number(value: Any) -> bool:
    """Whether a metric is a number, of Python, NumPy or PyTorch."""
    if isinstance(value, Real):
        return not isinstance(value, bool)
    return getattr(value, "ndim", None) == 0 and hasattr(value, "item")
