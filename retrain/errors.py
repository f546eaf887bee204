"""The two ways in which a run says no; everything else that is raised is a fault."""


class UsageError(ValueError):
    """The run was asked for in a way that cannot be: a wrong name, key, type or place.

    The command line answers it with exit code 2.
    """


class RejectedDataError(ValueError):
    """The data does not pass the workload's checks; training on it would be a mistake."""
