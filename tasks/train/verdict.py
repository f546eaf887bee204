"""An error that another try cannot help: it ends a training on all workers, at once.

Ray Train would start the workers again after any error of one of them, and the others would wait
for it in the exchange of gradients until then.
"""

from collections.abc import Iterable
from typing import Any

from ray.train import ControllerError, TrainingFailedError, UserCallback

from retrain.errors import is_verdict


class StopAtVerdict(UserCallback):  # type: ignore[misc]  # Ray is not typed
    """Fails the training when a worker raises what another try cannot help.

    Ray Train's controller calls it before it decides about another try, and takes an error of its
    own for the end.
    """

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raises the error of the first worker that has one."""
        if found := _first_verdict(worker_exceptions.values()):
            raise found


def verdict(error: TrainingFailedError) -> Exception | None:
    """What `StopAtVerdict` ended a training with; None if that ended otherwise."""
    if isinstance(error, ControllerError):
        return _first_verdict([error.controller_failure])
    return None


def _first_verdict(errors: Iterable[Exception]) -> Exception | None:
    return next((error for error in errors if is_verdict(error)), None)
