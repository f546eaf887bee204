"""Checks a run before its first step, so that it fails at once and not hours later."""

from collections.abc import Iterable, Sequence

from retrain import tracking
from retrain.errors import UsageError
from retrain.faults import did_you_mean
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.step import Step
from retrain.workload import Workload


def check(
    steps: Sequence[Step],
    workload: Workload,
    project: Project,
    other_steps: Sequence[str] = (),
) -> None:
    """Finds faults that would make one of the steps of a flow fail. Nothing is changed.

    Args:
        steps: The steps of the flow, in order.
        workload: The workload of the run.
        project: The clone that it runs in.
        other_steps: The names of further steps, whose time limits a workload may have too.

    Raises:
        UsageError: With a line for each fault.
    """
    names = [*(step.name for step in steps), *other_steps]
    faults = [
        f"limits.{name}: no such step.{did_you_mean(name, names)}"
        for name in workload.limits
        if name not in names
    ]
    faults += [fault for step in steps for fault in step.check(workload, project)]
    refuse(workload, faults)


def check_slowly(
    steps: Sequence[Step], workload: Workload, project: Project, force: bool = False
) -> None:
    """Finds faults that `check` has no time for; a run is about to start. Nothing is changed.

    Args:
        steps: The steps that may run.
        workload: The workload of the run.
        project: The clone that it runs in.
        force: Allow steps that need more than this machine has.

    Raises:
        UsageError: With a line for each fault.
    """
    faults = [fault for step in steps for fault in step.check_slowly(workload, project)]
    if not faults and not force:  # a faulty workload cannot be estimated
        excesses = [step.forecast(workload, project).excess for step in steps]
        faults += [excess for excess in excesses if excess]
    refuse(workload, faults)


def refuse(workload: Workload, faults: Iterable[str]) -> None:
    """Refuses a workload, if there are faults.

    Raises:
        UsageError: With a line for each fault.
    """
    if lines := [*faults]:
        raise UsageError(f"workload {workload.name}: " + "\n".join(lines))


def check_surroundings(project: Project) -> None:
    """Checks the servers that a run uses.

    Raises:
        ConnectionError: A server that the environment names does not answer within seconds.
    """
    tracking.check(project)
    ray_cluster.check()
