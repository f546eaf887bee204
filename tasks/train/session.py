"""The session of a training: its place among the workers, and what it keeps on the disk.

`report` keeps a checkpoint, and the metrics of an epoch that is over; `latest` is where a training
goes on that was interrupted. All workers see the folder, in which the first one writes; so they
need no help of Ray Train's. What a function of the user's reports to Ray Train is kept here, too
(`user_function.py`).
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from retrain.file_io import sha256_of, write_text
from tasks.data.shards import open_prepared
from tasks.train import distributed
from tasks.train.job import PROGRESS, Epoch, TrainingJob, score

REPORTS = "reports.json"
TICK_SECONDS = 0.25  # between two writes of the progress
CHECKPOINTS = "checkpoints"
NEWEST = 2  # checkpoints, which are kept: a damaged one has the one before it
UNREPORTED = "unreported"  # a checkpoint that is being written
CPU = torch.device("cpu")
DIGITS = 16  # of a digest
STEPS_BETWEEN_FLAGS = 10  # after which workers agree on whether to write a checkpoint


@dataclass(frozen=True)
class Report:
    """What was reported of an epoch, or by a function of the user's.

    Attributes:
        metrics: The numbers, with `epoch` (the number of the report) and `seconds` since the one
            before.
        checkpoint: The number of its checkpoint; None if it has none.
    """

    metrics: dict[str, Any]
    checkpoint: int | None


class Session:
    """What one of the workers sees of a training.

    Attributes:
        job: The training.
        rank: The rank of this worker, from 0.
        world_size: The number of workers.
        device: The device of this worker.
        reports: Those that were made so far.
        checkpoints: How many there were.
        step: The optimizer steps of the newest one; 0 if a function of the user's reports them.
    """

    def __init__(
        self,
        job: TrainingJob,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device = CPU,
    ) -> None:
        """Reads the reports of an interrupted training.

        Args:
            job: The training.
            rank: The rank of this worker, from 0.
            world_size: The number of workers.
            device: The device of this worker.
        """
        self.job, self.rank, self.world_size = job, rank, world_size
        self.device = device
        self.reports: list[Report] = []
        self.checkpoints, self.step = 0, 0
        if (file := job.scratch / REPORTS).exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            self.reports = [Report(**report) for report in document["reports"]]
            self.checkpoints, self.step = document["checkpoints"], document["step"]
        self._saved = monotonic()

    @property
    def history(self) -> list[dict[str, Any]]:
        """The metrics of each report."""
        return [report.metrics for report in self.reports]

    @property
    def best(self) -> Report | None:
        """The best of the reports with a checkpoint; None if there is none."""
        choice = self.job.hyperparameters.best
        reports = [
            report
            for report in self.reports
            if report.checkpoint and choice.metric in report.metrics
        ]
        return max(reports, key=lambda report: score(report.metrics, choice), default=None)

    def folder(self, checkpoint: int) -> Path:
        """The folder of the checkpoint with a number, from 1."""
        return self.job.scratch / CHECKPOINTS / f"{checkpoint:08d}"

    def latest(self, *, mapped: bool = False) -> dict[str, Any] | None:
        """The state of the newest checkpoint that is not damaged; None if there is none.

        Args:
            mapped: Read a tensor only when it is used, as each worker of a sharded network takes a
                part of each.
        """
        for number in range(self.checkpoints, 0, -1):
            if is_undamaged(self.folder(number)):
                return read_state(self.folder(number), mapped=mapped)
        return None

    def checkpoint_is_due(self, step: int) -> bool:
        """Whether the first worker finds the last checkpoint old; all workers ask it."""
        late = monotonic() - self._saved > self.job.scale.checkpoint_seconds
        # On GPUs an exchange waits for all earlier work.
        asks = self.world_size == 1 or step % STEPS_BETWEEN_FLAGS == 0
        return asks and bool(distributed.value_of_first(late))

    def report(self, metrics: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Keeps the state of a training; all workers call it.

        Args:
            metrics: Of the epoch that has ended; none within an epoch.
            state: Tensors and plain values, with `step`.
        """
        if self.rank == 0:
            folder = self.job.scratch / UNREPORTED
            write_state(folder, state)
            self.keep(metrics, folder, step=state["step"])
        elif metrics:
            self._add(metrics, None)
        self._saved = monotonic()

    def keep(self, metrics: Mapping[str, Any], folder: Path | None, *, step: int = 0) -> None:
        """Keeps a report, in the one process of a training that does so.

        Args:
            metrics: With `epoch` and `seconds`; none within an epoch.
            folder: The checkpoint, which is moved; None if there is none.
            step: Its optimizer steps.
        """
        if folder:
            number = self.checkpoints + 1
            kept = self.folder(number)
            shutil.rmtree(kept, ignore_errors=True)  # of a report that was cut off
            kept.parent.mkdir(exist_ok=True)
            folder.rename(kept)
            self.checkpoints, self.step = number, step
        if metrics:
            self._add(metrics, self.checkpoints if folder else None)
        document = {
            "reports": [asdict(report) for report in self.reports],
            "checkpoints": self.checkpoints,
            "step": self.step,
        }
        write_text(self.job.scratch / REPORTS, json.dumps(document))
        self._remove_old()
        if metrics:
            self.show_progress()

    def _add(self, metrics: Mapping[str, Any], checkpoint: int | None) -> None:
        # An epoch is reported once more whose checkpoint was damaged.
        self.reports[metrics["epoch"] - 1 :] = [Report(dict(metrics), checkpoint)]

    def _remove_old(self) -> None:
        """Removes all checkpoints but the newest and the best."""
        kept = {self.folder(self.checkpoints - age) for age in range(NEWEST)}
        if (best := self.best) and best.checkpoint:
            kept.add(self.folder(best.checkpoint))
        for folder in (self.job.scratch / CHECKPOINTS).glob("*"):
            if folder not in kept:
                shutil.rmtree(folder)

    def show_progress(self) -> None:
        """Writes the progress, in which a report is taken for an epoch."""
        epochs, reports = self.job.hyperparameters.epochs, len(self.reports)
        last = self.reports[-1].metrics
        images = len(open_prepared(self.job.images).split("train"))
        write_progress(
            self.job.scratch,
            self.history,
            epoch=min(reports, epochs),  # whose loss it is
            epochs=epochs,
            fraction=min(reports / epochs, 1.0),
            images_per_second=images / last["seconds"],
            loss=last.get("train_loss", last.get("loss")),
            seconds_left=max(epochs - reports, 0) * last["seconds"],
        )


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes a checkpoint, a file whose name has its digest, in place of one that was cut off."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "state"
    torch.save(state, path)
    path.rename(folder / f"state-{sha256_of(path)[:DIGITS]}.pt")


def read_state(folder: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Reads a checkpoint, on the CPU; if `mapped`, a tensor only when it is used."""
    [path] = folder.glob("state-*.pt")
    state: dict[str, Any] = torch.load(path, "cpu", weights_only=True, mmap=mapped)
    return state


def is_undamaged(folder: Path) -> bool:
    """Whether there is a checkpoint, with the content that its name says."""
    return any(path.stem.endswith(sha256_of(path)[:DIGITS]) for path in folder.glob("state-*.pt"))


def write_progress(
    scratch: Path,
    history: Sequence[Epoch],
    *,
    epoch: int,
    epochs: int,
    fraction: float,
    images_per_second: float,
    loss: float | None,
    seconds_left: float,
) -> None:
    """Writes the progress of a training into its scratch, for the process of the step.

    Args:
        scratch: The scratch folder of the training.
        history: The epochs that are over.
        epoch: The current epoch, from 1.
        epochs: The number of epochs.
        fraction: The fraction of all optimizer steps that is done, 0 to 1.
        images_per_second: The recent speed of training, all workers together.
        loss: The training loss, a moving mean; None if it is not known.
        seconds_left: The time until the end of the last epoch.
    """
    shown = "" if loss is None else f"loss {loss:.3f}  "
    document = {
        "epochs": epochs,
        "fraction": fraction,
        "seconds_left": seconds_left,
        "text": (
            f"epoch {epoch}/{epochs}  {shown}{images_per_second:,.0f} images/s  "
            f"{seconds_left:.0f} s left"
        ),
        "history": list(history),
    }
    write_text(scratch / PROGRESS, json.dumps(document))


class Meter:
    """Measures the project's own loop, and writes the progress a few times a second."""

    def __init__(self, scratch: Path, epochs: int, per_epoch: int, batch: int) -> None:
        """Starts to measure.

        Args:
            scratch: The scratch folder of the training.
            epochs: Epochs of the whole training.
            per_epoch: Optimizer steps of each.
            batch: Images of a step, over all workers.
        """
        self._scratch, self._batch = scratch, batch
        self._epochs, self._per_epoch = epochs, per_epoch
        # Steps and seconds: after the first step, which takes longer than the others, and the last.
        self._first: tuple[int, float] | None = None
        self._last = (0, 0.0)

    def tick(self, step: int, loss_sum: torch.Tensor, history: Sequence[Epoch]) -> None:
        """Writes the progress of the training, unless it has just done so.

        Args:
            step: Optimizer steps so far.
            loss_sum: The sum of the losses of the epoch so far; read only before a write, because
                reading waits for the device.
            history: The epochs that are over.
        """
        now, steps = monotonic(), self._epochs * self._per_epoch
        if self._first is None:
            self._first = self._last = (step, now)
        (first, began), (last, looked) = self._first, self._last
        if now - looked < TICK_SECONDS:
            return
        self._last = (step, now)
        write_progress(
            self._scratch,
            history,
            epoch=min(step // self._per_epoch + 1, self._epochs),
            epochs=self._epochs,
            fraction=step / steps,
            images_per_second=(step - last) * self._batch / (now - looked),
            loss=float(loss_sum) / (step - len(history) * self._per_epoch),
            seconds_left=(now - began) / (step - first) * (steps - step),
        )
