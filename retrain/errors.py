"""The two ways in which a run says no, and damage that it mends; all else is a fault."""


class UsageError(ValueError):
    """The run was asked for in a way that cannot be: a wrong name, key, type or place.

    The command line answers it with exit code 2.
    """


class RejectedDataError(ValueError):
    """The data does not pass the workload's checks; training on it would be a mistake."""


class DamagedArtifactError(Exception):
    """An output in the store is not as it was made, so nothing made of it is believed.

    Attributes:
        step: The step that made it.
        key: Its key.
        said: What is wrong with it.
    """

    def __init__(self, step: str, key: str, said: str) -> None:
        super().__init__(f"{step} {key[:8]} is damaged ({said}); it is made again.")
        self.step, self.key, self.said = step, key, said
