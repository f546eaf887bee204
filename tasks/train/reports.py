"""Keeps what a training reports to Ray Train: the history, the newest checkpoints, and the best.

With workers, Ray Train copies each reported checkpoint to its storage, records it there, calls
`Reports` in its controller, which is on the machine of the step, and gives the last checkpoint back
when the training runs again after a kill. Without workers, Ray Train runs the training in this
process and keeps nothing; `keep_in_process` then keeps the checkpoints and calls `Reports` instead.
"""

import json
import shutil
from collections.abc import Mapping
from math import isfinite
from numbers import Real
from pathlib import Path
from time import monotonic
from typing import Any

from ray.train import Checkpoint, Result, UserCallback
from ray.train.v2._internal.execution.train_fn_utils import get_train_fn_utils

from retrain.disk import write_text
from tasks.data.shards import open_prepared
from tasks.train import function, progress
from tasks.train.job import CHECKPOINTS, RAY, TrainingJob, score

HISTORY = "reports.json"
BEST = "best"
NEWEST = "newest"


class Reports(UserCallback):  # type: ignore[misc]  # Ray is not typed
    """The reports of a training, in files that remain after a kill.

    Attributes:
        history: An entry for each report of an epoch, or of a function of the user's: the numbers
            of the first worker, `epoch` (the number of the report) and `seconds` since the one
            before.
        best: The best of the entries with a checkpoint; None if there is none.
        checkpoints: How many were reported.
        step: The optimizer steps of the newest one; 0 if a function of the user's reports them.
        newest: The newest one; None if there is none.
    """

    def __init__(self, job: TrainingJob) -> None:
        """Reads the reports of an interrupted training."""
        self._job, self._last_report = job, monotonic()
        self._images = len(open_prepared(job.images).split("train"))
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.checkpoints, self.step, self._newest = 0, 0, ""
        if (file := job.scratch / HISTORY).exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            self.history, self.best = document["history"], document["best"]
            self.checkpoints, self.step = document["checkpoints"], document["step"]
            self._newest = document["newest"]
        self._take_one_that_was_cut_off()

    def _take_one_that_was_cut_off(self) -> None:
        """Takes the last report if a kill came after Ray Train had recorded it, and before this."""
        try:
            recorded = Result.from_path(str(self._job.scratch / RAY))
        except RuntimeError:  # Ray Train has recorded none
            return
        if recorded.checkpoint and _name(recorded.checkpoint) != self._newest:
            self.after_report(None, [recorded.metrics], recorded.checkpoint)

    @property
    def best_checkpoint(self) -> Checkpoint:
        """The best report's checkpoint."""
        assert self.best is not None
        return Checkpoint(str(self._job.scratch / BEST / str(self.best["epoch"])))

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint; None if there is none."""
        folder = RAY if self._job.scale.workers else NEWEST
        place = self._job.scratch / folder / self._newest
        return Checkpoint(str(place)) if self._newest else None

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Takes a report of all workers; Ray Train's controller calls it.

        Raises:
            ValueError: A metric is not a finite number; or the first checkpoint has no weights.
        """
        entry: dict[str, Any] = {
            name: float(value) for name, value in metrics[0].items() if _is_number(value)
        }
        is_own = self._job.hyperparameters.function is None
        # The own loop reports within an epoch, too; and once more an epoch whose checkpoint was
        # damaged.
        is_new = not is_own or entry.get("epoch") == len(self.history) + 1
        if is_own:
            self.step = int(entry.pop("step"))
        if is_new:
            self._take(entry, checkpoint)
        if checkpoint:
            self.checkpoints, self._newest = self.checkpoints + 1, _name(checkpoint)
        self._write()
        if self.best:
            _remove_others(Path(self.best_checkpoint.path))
        if is_new:
            self.show_progress()

    def _take(self, entry: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        """Adds an entry to the history, and keeps its checkpoint if it is the best."""
        number, before, self._last_report = len(self.history) + 1, self._last_report, monotonic()
        for name, value in entry.items():
            if not isfinite(value):
                raise ValueError(
                    f"train.function reported {name} = {value} in its report {number}: the "
                    "training diverged. Lower its learning rate."
                )
        if checkpoint and not self.checkpoints and self._job.hyperparameters.function:
            # Else it would be found out after the training.
            function.network_of(self._job, checkpoint)
        entry = {"seconds": self._last_report - before, **entry, "epoch": number}
        self.history.append(entry)
        choice = self._job.hyperparameters.best
        if not checkpoint or choice.metric not in entry:
            return
        if self.best is None or score(entry, choice) > score(self.best, choice):
            self.best = entry
            _copy(checkpoint, self.best_checkpoint.path)

    def _write(self) -> None:
        document = {
            "history": self.history,
            "best": self.best,
            "checkpoints": self.checkpoints,
            "step": self.step,
            "newest": self._newest,
        }
        write_text(self._job.scratch / HISTORY, json.dumps(document))

    def show_progress(self) -> None:
        """Writes the progress, in which a report is taken for an epoch."""
        epochs, reports = self._job.hyperparameters.epochs, len(self.history)
        last = self.history[-1]
        current = progress.Progress(
            epoch=min(reports, epochs),  # whose loss it is
            epochs=epochs,
            fraction=min(reports / epochs, 1.0),
            images_per_second=self._images / last["seconds"],
            loss=last.get("train_loss", last.get("loss")),
            seconds_left=max(epochs - reports, 0) * last["seconds"],
        )
        progress.write(self._job.scratch, current, self.history)


def keep_in_process(job: TrainingJob) -> None:
    """Has Ray Train keep the checkpoints of a training without workers.

    Whatever module asks `ray.train` for `report` and `get_checkpoint`, Ray Train passes it on to
    one object, which is made for each training.
    """
    above, reports = job.scratch / NEWEST, Reports(job)
    above.mkdir(exist_ok=True)

    def report(
        metrics: Mapping[str, Any],
        checkpoint: Any = None,
        *,
        delete_local_checkpoint_after_upload: bool = False,
        **options: Any,
    ) -> None:
        kept = None
        if checkpoint:
            folder = above / f"{reports.checkpoints + 1:08d}"
            shutil.rmtree(folder, ignore_errors=True)  # of a report that was cut off
            kept = Checkpoint(str(folder))
            if delete_local_checkpoint_after_upload:
                Path(checkpoint.path).rename(folder)
            else:
                _copy(checkpoint, kept.path)
        reports.after_report(None, [dict(metrics)], kept)
        for old in sorted(above.iterdir())[:-CHECKPOINTS]:
            shutil.rmtree(old)

    ray_train = get_train_fn_utils()
    ray_train.report, ray_train.get_checkpoint = report, lambda: reports.newest


def _name(checkpoint: Checkpoint) -> str:
    return str(checkpoint.path.rpartition("/")[2])


def _copy(checkpoint: Checkpoint, to: str) -> None:
    with checkpoint.as_directory() as folder:  # of the user's, it may be in an object store
        shutil.copytree(folder, to, dirs_exist_ok=True)


def _remove_others(best: Path) -> None:
    """Removes the checkpoints beside the best one."""
    for folder in best.parent.iterdir():
        if folder != best:
            shutil.rmtree(folder)


def _is_number(value: Any) -> bool:
    """Whether a metric is a number, of Python, NumPy or PyTorch."""
    if isinstance(value, Real):
        return not isinstance(value, bool)
    return getattr(value, "ndim", None) == 0 and hasattr(value, "item")
