"""The errors that a run tells apart: wrong usage, bad data, a time limit, damaged outputs."""


class UsageError(ValueError):
    """The run was asked for in a way that cannot be: a wrong name, key, type or place.

    The command line answers it with exit code 2.
    """


class RejectedDataError(ValueError):
    """The data does not pass the workload's checks; training on it would be a mistake."""


class StepTimeoutError(Exception):
    """A step did not end within its limit."""


class DamagedArtifactError(Exception):
    """An output in the store is not as it was made, so nothing made of it is believed.

    Attributes:
        step: The step that made it.
        key: Its key.
        damage: What is wrong with it.
    """

    def __init__(self, step: str, key: str, damage: str) -> None:
        super().__init__(f"{step} {key[:8]} is damaged ({damage}); it is made again.")
        self.step, self.key, self.damage = step, key, damage


def is_verdict(error: BaseException) -> bool:
    """Whether an error is about what was asked for: data, config, a model or the code.

    Another try ends in the same way.
    """
    return isinstance(error, ValueError | AssertionError | TypeError)
