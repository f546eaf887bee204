"""Reports the progress of a training: the first worker writes a file, the step's process reads it.

A file works for both ways of training, in the process of the step and on separate workers.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, Any

from retrain.atomic import write_json
from retrain.runs import console
from retrain.runs.console import Progress
from tasks.train.selection import Epoch

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

FILE = "progress.json"
TICK_SECONDS = 0.25
# MLflow logging is rare: on a small machine it takes time from the training.
LOG_SECONDS = 5.0


class Meter:
    """Measures a training in its loop and writes the progress, a few times a second."""

    def __init__(
        self, file: Path, epochs: int, steps: int, batch: int, step: int, loss_sum: float
    ) -> None:
        """Starts to measure, as in a pause.

        Args:
            file: The file that it writes.
            epochs: Epochs of the whole training.
            steps: Optimizer steps of the whole training.
            batch: Images of a step, over all workers.
            step: The first step; more than 0 if the training was resumed.
            loss_sum: The sum of the losses of the epoch before that step.
        """
        self._file = file
        self._epochs, self._steps, self._batch = epochs, steps, batch
        self._first, self._began = step, monotonic()
        self._resumed_at = step * epochs // steps + 1 if 0 < step < steps else None
        # The time of the last measurement, without pauses, and its values.
        self._looked = self._paused = self._began
        self._last, self._loss = step, loss_sum
        self._images_per_second = 0.0

    def go_on(self) -> None:
        """Ends a pause, between two epochs."""
        self._looked += monotonic() - self._paused

    def pause(self, loss_sum: float) -> None:
        """Ends an epoch with the sum of its losses; the next epoch's sum starts from 0."""
        self._paused = monotonic()
        self._loss -= loss_sum

    def tick(self, step: int, loss_sum: "Tensor", history: Sequence[Epoch]) -> None:
        """Writes the progress of the training, unless it has just done so.

        Args:
            step: Optimizer steps so far.
            loss_sum: The sum of the losses of the epoch so far; read only before a write, because
                reading waits for the device.
            history: The epochs that are over.
        """
        now = monotonic()
        if now - self._looked < TICK_SECONDS:
            return
        losses, steps = float(loss_sum), step - self._last
        self._images_per_second = steps * self._batch / (now - self._looked)
        loss = (losses - self._loss) / steps
        self._last, self._looked, self._loss = step, now, losses
        self.write(step, loss, history)

    def write(self, step: int, loss: float, history: Sequence[Epoch]) -> None:
        """Writes the progress of the training."""
        done, took = step - self._first, monotonic() - self._began
        speed = self._images_per_second
        if not speed and history:  # of a training that was over, or too short to be measured
            speed = history[-1]["images_per_second"]
        progress = {
            "epoch": min(step * self._epochs // self._steps + 1, self._epochs),
            "epochs": self._epochs,
            "fraction": step / self._steps,
            "images_per_second": speed,
            "loss": loss,
            "seconds_left": took / done * (self._steps - step) if done else 0.0,
        }
        write_json(
            self._file,
            {"progress": progress, "history": list(history), "resumed_at": self._resumed_at},
        )


@contextmanager
def followed(
    file: Path, show: Callable[[Progress], None], log: Callable[[Sequence[Epoch]], None]
) -> Iterator[None]:
    """Shows and logs what the meter writes, while the training runs and once after it.

    A line says where a training continues that was interrupted.

    Args:
        file: The file that the meter writes.
        show: Called whenever the file has changed.
        log: Called from time to time with all epochs so far; called again later if it fails.

    Raises:
        Exception: The error of the last call of `log`.
    """
    file.unlink(missing_ok=True)  # of a try that was interrupted
    announced: set[int] = set()

    def show_written(written: Mapping[str, Any]) -> None:
        epoch = written["resumed_at"]
        if epoch and epoch not in announced:
            announced.add(epoch)
            epochs = written["progress"]["epochs"]
            console.say(f"train continues at epoch {epoch} of {epochs}, from its last checkpoint.")
        show(Progress(**written["progress"]))

    with console.telling_meanwhile(_follow, file, show_written, log):
        yield
    written = _read(file)
    show_written(written)
    log(written["history"])


def _follow(
    file: Path,
    show: Callable[[Mapping[str, Any]], None],
    log: Callable[[Sequence[Epoch]], None],
    over: Event,
) -> None:
    seen, logged, log_after = None, 0, monotonic() + LOG_SECONDS
    while not over.wait(TICK_SECONDS):
        if not file.exists() or (written := _read(file)) == seen:
            continue
        seen = written
        show(written)
        if len(written["history"]) > logged and monotonic() > log_after:
            try:
                log(written["history"])
                logged = len(written["history"])
            except Exception as error:  # the server is unreachable; the training continues
                logger.warning("The epochs so far could not be logged yet: %s", error)
            log_after = monotonic() + LOG_SECONDS


def _read(file: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return written
