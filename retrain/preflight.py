"""Checks a run before its first step, so that it fails at once and not hours later."""

from collections.abc import Sequence

from retrain.errors import UsageError
from retrain.project import Project
from retrain.step import Step
from retrain.workload import Workload, did_you_mean


def check(steps: Sequence[Step], workload: Workload, project: Project, force: bool = False) -> None:
    """Finds faults that would make one of the steps of a flow fail. Nothing is changed.

    Args:
        steps: All steps of the flow, in order.
        workload: The workload of the run.
        project: The clone that it runs in.
        force: Allow steps that need more than this machine has.

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
    if not faults and not force:  # a faulty workload cannot be estimated
        excesses = [step.forecast(workload, project).excess for step in steps]
        faults += [excess for excess in excesses if excess]
    if faults:
        raise UsageError(f"workload {workload.name}: " + "\n".join(faults))
