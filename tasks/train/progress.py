"""How far a training is: the first worker writes a small file, the step's own process reads it.

A file serves both ways of training, in the process of the step and on workers elsewhere.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from retrain.runs.console import Progress
from tasks.data.json_file import write_json

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

FILE = "progress.json"
TICK_SECONDS = 0.25
# MLflow is told rarely: on a small machine it takes time from the training.
LOG_SECONDS = 5.0

Epoch = Mapping[str, Any]  # what `history.json` says of one


class Meter:
    """Measures a training from inside and writes what it finds, a few times a second."""

    def __init__(
        self, file: Path, epochs: int, steps: int, batch: int, step: int, loss_sum: float
    ) -> None:
        """Starts to measure, in a pause.

        Args:
            file: What it writes.
            epochs: Of the whole training.
            steps: Optimizer steps of the whole training.
            batch: Images of a step, over all workers.
            step: Where the training starts; more than 0 if it was resumed.
            loss_sum: The losses of the epoch until there, added up.
        """
        self._file = file
        self._epochs, self._steps, self._batch = epochs, steps, batch
        self._first, self._began = step, monotonic()
        # When it last looked, in time spent training, and what it found.
        self._looked = self._paused = self._began
        self._last, self._loss = step, loss_sum
        self._images_per_second = 0.0

    def go_on(self) -> None:
        """Ends a pause, between two epochs."""
        self._looked += monotonic() - self._paused

    def pause(self, loss_sum: float) -> None:
        """Ends an epoch, with its losses, added up; the next one's start from 0."""
        self._paused = monotonic()
        self._loss -= loss_sum

    def tick(self, step: int, loss_sum: "Tensor", history: Sequence[Epoch]) -> None:
        """Writes how far the training is, unless it has just done so.

        Args:
            step: Optimizer steps so far.
            loss_sum: The losses of the epoch so far, added up; read only when it is time, because
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
        """Writes how far the training is."""
        done, took = step - self._first, monotonic() - self._began
        progress = {
            "epoch": min(len(history) + 1, self._epochs),
            "epochs": self._epochs,
            "fraction": step / self._steps,
            "images_per_second": self._images_per_second,
            "loss": loss,
            "seconds_left": took / done * (self._steps - step) if done else 0.0,
        }
        write_json(self._file, {"progress": progress, "history": list(history)})


@contextmanager
def followed(
    file: Path, show: Callable[[Progress], None], log: Callable[[Sequence[Epoch]], None]
) -> Iterator[None]:
    """Shows and logs what the meter writes while the training runs, and the rest after it.

    Args:
        file: What the meter writes.
        show: Called whenever it has changed.
        log: Called with all epochs so far, now and then. When it fails, it is called again later.

    Raises:
        Exception: Of the last call of `log`.
    """
    over = Event()
    thread = Thread(target=_follow, args=(file, show, log, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    written = _read(file)
    show(Progress(**written["progress"]))
    log(written["history"])


def _follow(
    file: Path,
    show: Callable[[Progress], None],
    log: Callable[[Sequence[Epoch]], None],
    over: Event,
) -> None:
    seen, logged, log_after = None, 0, monotonic() + LOG_SECONDS
    while not over.wait(TICK_SECONDS):
        if not file.exists() or (written := _read(file)) == seen:
            continue
        seen = written
        show(Progress(**written["progress"]))
        if len(written["history"]) > logged and monotonic() > log_after:
            try:
                log(written["history"])
                logged = len(written["history"])
            except Exception as error:  # a server that is away; the training need not stop for it
                logger.warning("The epochs so far could not be logged yet: %s", error)
            log_after = monotonic() + LOG_SECONDS


def _read(file: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return written
