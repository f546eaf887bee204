"""Ends a training on all workers at once after an error that a retry cannot fix.

Ray Train would restart the workers after any error of one of them, and until then the others would
wait for it in the exchange of gradients. If they wait too long, it is said in one line.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ray.train import ControllerError, TrainingFailedError, UserCallback

from retrain.errors import is_verdict

# In PyTorch's messages, when a worker has waited too long for another one: of Gloo, and of NCCL.
WAITED = ("Timed out waiting", "collective operation timeout")


class StopAtVerdict(UserCallback):  # type: ignore[misc]  # Ray is not typed
    """Fails the training when a worker raises an error that a retry cannot fix.

    Ray Train's controller calls it before it decides about a retry, and ends the training when the
    callback raises.
    """

    def __init__(self, waiting: Path) -> None:
        """Takes the file that exists while workers have been asked for and have not started."""
        self._waiting = waiting

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raises the error of the first worker with such an error; else other workers start."""
        if error := _first_verdict(worker_exceptions.values()):
            raise error
        self._waiting.touch()


def verdict(error: TrainingFailedError) -> Exception | None:
    """The error that `StopAtVerdict` raised; None if the training ended for another reason."""
    if isinstance(error, ControllerError):
        return _first_verdict([error.controller_failure])
    return None


def waited(error: TrainingFailedError, seconds: int) -> Exception | None:
    """What to say of a training that failed because workers waited for others; None of another.

    Args:
        error: As Ray Train raised it.
        seconds: How long a worker waits.
    """
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    waiting = [
        rank
        for rank, failure in sorted(failures.items())
        if any(said in str(failure) for said in WAITED)
    ]
    if not waiting:
        return None
    return TimeoutError(
        f"train: worker {waiting[0]} waited {seconds} s for another one, which hangs or is far "
        "slower. A longer time is scale.timeout_seconds."
    )


def _first_verdict(errors: Iterable[Exception]) -> Exception | None:
    return next((error for error in errors if is_verdict(error)), None)
