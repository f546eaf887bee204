"""What is wrong with a run before its first step: said at once instead of hours later."""

from collections.abc import Sequence

from retrain.errors import UsageError
from retrain.project import Project
from retrain.step import Step
from retrain.workload import Workload, did_you_mean


def check(steps: Sequence[Step], workload: Workload, project: Project) -> None:
    """Looks for what would make one of the steps of a flow fail. It changes nothing.

    Args:
        steps: The flow's, in their order.
        workload: What is run.
        project: The clone that it is run in.

    Raises:
        UsageError: With a line for each fault.
    """
    names = [step.name for step in steps]
    faults = [
        f"limits.{name}: no such step.{did_you_mean(name, names)}"
        for name in workload.limits
        if name not in names
    ]
    faults += [fault for step in steps for fault in step.check(workload, project)]
    if faults:
        raise UsageError(f"workload {workload.name}: " + "\n".join(faults))
