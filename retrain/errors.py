"""The errors that a run may raise: wrong usage, bad data, time limits, damage, no remote."""

from collections.abc import Mapping, Sequence
from typing import Any


class UsageError(ValueError):
    """The request is wrong: a name, key, type or place.

    The command line then ends with exit code 2.
    """


class RejectedDataError(ValueError):
    """The data does not pass the workload's checks; training on it would be a mistake."""


class ChampionChangedError(ValueError):
    """Another run has changed the champion since the model was compared with it."""


class PrunedError(ValueError):
    """A training that is a trial of a search was ended early: others were better by then.

    Attributes:
        history: An entry for each of its evaluations, up to the one that ended it.
    """

    def __init__(self, history: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(history)
        self.history = history

    def __str__(self) -> str:
        return f"pruned after {len(self.history)} evaluations"


class EndsHereError(Exception):
    """The rest of the flow is not followed: a look has found a step that has to run.

    Or the last step that was asked for has ended.

    Attributes:
        step: The name of the step.
        reason: Why it has to run.
    """

    def __init__(self, step: str, reason: str | None = None) -> None:
        super().__init__(step)
        self.step, self.reason = step, reason


class StepTimeoutError(Exception):
    """A step did not end within its limit."""

    def __init__(self, step: str, hours: float) -> None:
        super().__init__(f"{step} did not end within {hours:g} h (limits.{step}).")


class DamagedArtifactError(Exception):
    """An artifact in the store has changed, so results that were made from it are not used.

    Attributes:
        step: The step that made it.
        key: The key of the artifact.
        damage: What is wrong with the artifact.
    """

    def __init__(self, step: str, key: str, damage: str) -> None:
        super().__init__(step, key, damage)
        self.step, self.key, self.damage = step, key, damage

    def __str__(self) -> str:
        return f"{self.step} {self.key[:8]} is damaged ({self.damage}); it is made again."


class RemoteError(ConnectionError):
    """The remote store does not answer, or refuses; what is here stays as it was."""


def is_verdict(error: BaseException) -> bool:
    """Whether an error comes from the data, the config, the model or the code.

    A retry would end in the same way.
    """
    return isinstance(error, ValueError | AssertionError | TypeError)
