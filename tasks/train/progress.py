"""Reports the progress of a training: its first worker writes a file, the step's process reads it.

What is reported is written, too (`session.py`).
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING

from rich.markup import escape

from retrain.disk import write_text
from retrain.runs import console
from tasks.train.best_epoch import Epoch

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

FILE = "progress.json"
TICK_SECONDS = 0.25
# MLflow logging is rare: on a small machine it takes time from the training.
LOG_SECONDS = 5.0
LINE_SECONDS = 2.0  # between the lines of two epochs
LONG_SECONDS = 60.0  # after which a line is due in a log even if no epoch has ended
# Of an epoch's entry; its number is shown otherwise.
NOT_SHOWN = ("epoch", "seconds", "val_macro_recall", "lr", "images_per_second")


@dataclass(frozen=True)
class Progress:
    """The progress of a training.

    Attributes:
        epoch: The current epoch, from 1.
        epochs: The number of epochs.
        fraction: The fraction of all optimizer steps that is done, 0 to 1.
        images_per_second: The recent speed of training, all workers together.
        loss: The training loss, a moving mean; None if it is not known.
        seconds_left: The time until the end of the last epoch.
    """

    epoch: int
    epochs: int
    fraction: float
    images_per_second: float
    loss: float | None
    seconds_left: float

    def __str__(self) -> str:
        loss = "" if self.loss is None else f"loss {self.loss:.3f}  "
        return (
            f"epoch {self.epoch}/{self.epochs}  {loss}"
            f"{self.images_per_second:,.0f} images/s  {self.seconds_left:.0f} s left"
        )


def write(scratch: Path, progress: Progress, history: Sequence[Epoch]) -> None:
    """Writes the progress of a training into its scratch, with the epochs that are over."""
    document = {"progress": asdict(progress), "history": list(history)}
    write_text(scratch / FILE, json.dumps(document))


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

    def tick(self, step: int, loss_sum: "Tensor", history: Sequence[Epoch]) -> None:
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
        progress = Progress(
            epoch=min(step // self._per_epoch + 1, self._epochs),
            epochs=self._epochs,
            fraction=step / steps,
            images_per_second=(step - last) * self._batch / (now - looked),
            loss=float(loss_sum) / (step - len(history) * self._per_epoch),
            seconds_left=(now - began) / (step - first) * (steps - step),
        )
        write(self._scratch, progress, history)


class EpochLines:
    """Shows a training where there is no live bar: a line for each epoch that is over.

    An epoch has none if it ends within two seconds of the line before it, except the last one; if
    the training ends within two seconds, there is none at all.
    """

    def __init__(self) -> None:
        """Starts the clock."""
        self._last, self._epochs = monotonic(), 0

    def show(self, progress: Progress, history: Sequence[Epoch], *, is_over: bool) -> None:
        """Shows the newest epoch, if it is due; between epochs, a line every minute."""
        seconds, is_new = monotonic() - self._last, len(history) > self._epochs
        if is_new and (seconds >= LINE_SECONDS or (is_over and self._epochs)):
            metrics = "  ".join(
                f"{name} {console.number(value)}"
                for name, value in history[-1].items()
                if name not in NOT_SHOWN
            )
            ended = f"epoch {len(history)}/{progress.epochs}"
            line = f"{ended}  {metrics}  {progress.seconds_left:.0f} s left"
        elif seconds >= LONG_SECONDS:
            line = str(progress)
        else:
            return
        self._last, self._epochs = monotonic(), len(history)
        console.say(escape(f"  train  {line}"))


@contextmanager
def followed(
    scratch: Path, show: console.Show, log: Callable[[Sequence[Epoch]], None]
) -> Iterator[None]:
    """Shows and logs what a loop writes, while the training runs and once after it.

    Args:
        scratch: The scratch folder of the training.
        show: Called whenever the progress has changed, with the fraction that is done and a text.
        log: Called from time to time with all epochs so far; called again later if it fails.

    Raises:
        Exception: The error of the last call of `log`.
    """
    file, lines = scratch / FILE, EpochLines()
    file.unlink(missing_ok=True)  # of a try that was interrupted

    def take(*, is_over: bool = False) -> Sequence[Epoch]:
        """Shows what is written; returns the epochs that are over."""
        document = json.loads(file.read_text(encoding="utf-8"))
        progress = Progress(**document["progress"])
        history: Sequence[Epoch] = document["history"]
        if console.is_live():
            show(progress.fraction, str(progress))
        else:
            lines.show(progress, history, is_over=is_over)
        return history

    def follow() -> None:
        written_at, logged, log_after = None, 0, monotonic() + LOG_SECONDS
        while not over.wait(TICK_SECONDS):
            before, written_at = written_at, file.stat().st_mtime_ns if file.exists() else None
            if written_at == before:
                continue
            history = take()
            if len(history) > logged and monotonic() > log_after:
                try:
                    log(history)
                    logged = len(history)
                except Exception as error:  # the server is unreachable; the training continues
                    logger.warning("The epochs so far could not be logged yet: %s", error)
                log_after = monotonic() + LOG_SECONDS

    over = Event()
    # In the context of the run, in which Prefect assigns the lines to it.
    thread = Thread(target=copy_context().run, args=(follow,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    log(take(is_over=True))
