"""The two ways in which a run says no; everything else that is raised is a fault."""


class UsageError(ValueError):
    """The run was asked for in a way that cannot be: a wrong name, key, type or place.

    The command line answers it with exit code 2.
    """


class RejectedDataError(ValueError):
    """The data does not pass the workload's checks; training on it would be a mistake."""


class StepTimeoutError(Exception):
    """A step did not end within its limit."""


def is_verdict(error: BaseException) -> bool:
    """Whether an error is about what was asked for: data, config, a model or the code.

    Another try ends in the same way.
    """
    return isinstance(error, ValueError | AssertionError | TypeError)
