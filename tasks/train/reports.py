"""Keeps what a training function of the user's reports to Ray Train: the history, and the best.

With workers, Ray Train copies each reported checkpoint to its storage, records it there, calls
`Reports` in its controller, which is on the machine of the step, and gives the last checkpoint back
when the function runs again after a kill. Without workers, Ray Train runs the function in this
process and keeps nothing; `keep_in_process` then keeps the checkpoints and calls `Reports` instead.
"""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from numbers import Real
from time import monotonic
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, copy_files
from ray.train import Checkpoint, Result, UserCallback
from ray.train.v2._internal.execution.train_fn_utils import get_train_fn_utils

from retrain.runs.console import Progress
from tasks.data.shards import open_prepared
from tasks.train import progress
from tasks.train.job import RAY, TrainingJob
from tasks.train.reported_weights import network_of
from tasks.train.selection import is_better

HISTORY = "reports.json"
BEST = "best"
NEWEST = "newest"


class Reports(UserCallback):  # type: ignore[misc]  # Ray is not typed
    """The reports of a training, in files that remain after a kill.

    Attributes:
        history: An entry for each report: the numbers of the first worker, `epoch` (the number of
            the report), `seconds` since the one before, and whether it had a `checkpoint`.
        best: The best of the entries with a checkpoint; None if there is none.
    """

    def __init__(self, job: TrainingJob) -> None:
        """Reads the reports of an interrupted training."""
        self._job, self._last_report = job, monotonic()
        self._images = len(open_prepared(job.images).split("train"))
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self._newest = ""  # the name of the newest checkpoint
        files, above = FileSystem.from_uri(job.storage)
        if files.get_file_info(f"{above}/{HISTORY}").is_file:
            document = json.loads(files.open_input_file(f"{above}/{HISTORY}").read())
            self.history, self.best = document["history"], document["best"]
            self._newest = document["newest"]
        self._take_one_that_was_cut_off()

    def _take_one_that_was_cut_off(self) -> None:
        """Takes the last report if a kill came after Ray Train had recorded it, and before this."""
        try:
            recorded = Result.from_path(f"{self._job.storage}/{RAY}")
        except RuntimeError:  # Ray Train has recorded none
            return
        if recorded.checkpoint and _name(recorded.checkpoint) != self._newest:
            self.after_report(None, [recorded.metrics], recorded.checkpoint)

    @property
    def best_checkpoint(self) -> Checkpoint:
        """The best report's checkpoint."""
        assert self.best is not None
        return Checkpoint(f"{self._job.storage}/{BEST}/{self.best['epoch']}")

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Takes a report of all workers; Ray Train's controller calls it.

        Raises:
            ValueError: A metric is not a finite number; or the first checkpoint has no weights.
            PrunedError: The training is a trial of a search, which ends it.
        """
        number, before, self._last_report = len(self.history) + 1, self._last_report, monotonic()
        entry: dict[str, Any] = {
            name: float(value) for name, value in metrics[0].items() if _is_number(value)
        }
        for name, value in entry.items():
            if not isfinite(value):
                raise ValueError(
                    f"train.function reported {name} = {value} in its report {number}: the "
                    "training diverged. Lower its learning rate."
                )
        seconds = self._last_report - before
        if checkpoint and not any(before["checkpoint"] for before in self.history):
            network_of(self._job, checkpoint)  # else it would be found out after the training
        entry |= {"epoch": number, "seconds": seconds, "checkpoint": checkpoint is not None}
        self.history.append(entry)
        choice = self._job.hyperparameters.best
        if checkpoint and choice.metric in entry and is_better(entry, self.best, choice):
            self.best = entry
            _copy(checkpoint, self.best_checkpoint)
        if checkpoint:
            self._newest = _name(checkpoint)
        files, above = FileSystem.from_uri(self._job.storage)
        with files.open_output_stream(f"{above}/{HISTORY}.new") as file:
            document = {"history": self.history, "best": self.best, "newest": self._newest}
            file.write(json.dumps(document).encode())
        files.move(f"{above}/{HISTORY}.new", f"{above}/{HISTORY}")
        if self.best:
            _remove_others(f"{self._job.storage}/{BEST}", [self.best_checkpoint])
        self.show_progress()
        self._job.check_pruned(self.history)

    def show_progress(self) -> None:
        """Writes the progress, in which a report is taken for an epoch."""
        epochs, reports, last = (
            self._job.hyperparameters.epochs,
            len(self.history),
            self.history[-1],
        )
        current = Progress(
            epoch=min(reports, epochs),  # whose loss it is
            epochs=epochs,
            fraction=min(reports / epochs, 1.0),
            images_per_second=self._images / last["seconds"],
            loss=last.get("train_loss", last.get("loss")),
            seconds_left=max(epochs - reports, 0) * last["seconds"],
        )
        progress.write(self._job.tell, current, self.history)


def keep_in_process(job: TrainingJob, reports: Reports) -> None:
    """Has Ray Train keep the checkpoints of a training without workers.

    Whatever module asks `ray.train` for `report` and `get_checkpoint`, Ray Train passes it on to
    one object, which is made for each training.

    Args:
        job: The training, whose function runs in this process.
        reports: Gets what is reported.
    """
    above = f"{job.storage}/{NEWEST}"

    def newest() -> list[Checkpoint]:
        reported = (entry["epoch"] for entry in reports.history if entry["checkpoint"])
        return [Checkpoint(f"{above}/{number}") for number in reported]

    def report(metrics: Mapping[str, Any], checkpoint: Any = None, **options: Any) -> None:
        copied = None
        if checkpoint:
            copied = Checkpoint(f"{above}/{len(reports.history) + 1}")
            _copy(checkpoint, copied)
        reports.after_report(None, [dict(metrics)], copied)
        _remove_others(above, newest()[-job.scale.keep_checkpoints :])

    def get_checkpoint() -> Checkpoint | None:
        return newest()[-1] if newest() else None

    ray_train = get_train_fn_utils()
    ray_train.report, ray_train.get_checkpoint = report, get_checkpoint


def _name(checkpoint: Checkpoint) -> str:
    return str(checkpoint.path.rpartition("/")[2])


def _copy(checkpoint: Checkpoint, to: Checkpoint) -> None:
    to.filesystem.create_dir(to.path)
    copy_files(
        checkpoint.path,
        to.path,
        source_filesystem=checkpoint.filesystem,
        destination_filesystem=to.filesystem,
    )


def _remove_others(place: str, keep: Sequence[Checkpoint]) -> None:
    """Removes the folders in a folder that are not kept."""
    files, path = FileSystem.from_uri(place)
    for folder in files.get_file_info(FileSelector(path, allow_not_found=True)):
        if folder.path not in {checkpoint.path for checkpoint in keep}:
            files.delete_dir(folder.path)


def _is_number(value: Any) -> bool:
    """Whether a metric is a number, of Python, NumPy or PyTorch."""
    if isinstance(value, Real):
        return not isinstance(value, bool)
    return getattr(value, "ndim", None) == 0 and hasattr(value, "item")
