"""Checks a run before its first step, so that it fails at once and not hours later."""

import getpass
import os
from collections.abc import Iterable, Iterator, Sequence

from retrain import messages
from retrain.errors import UsageError, did_you_mean
from retrain.project import Project
from retrain.registry import tracking
from retrain.servers import ray_cluster
from retrain.step import DataVersion, Task
from retrain.workload import Workload

NAMED = 3  # files in a sentence


def check(
    steps: Sequence[Task],
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


def notices(
    steps: Sequence[Task], workload: Workload, project: Project, version: DataVersion
) -> list[str]:
    """Finds what a person should know before a run's first step, and what `check` has no time for.

    Args:
        steps: The steps that the workload needs.
        workload: The workload of the run.
        project: The clone that it runs in.
        version: The version of the data.

    Returns:
        A sentence for each.

    Raises:
        UsageError: A step would fail.
    """
    sentences = [version.warning, project.git_fault(), _uncommitted(project)]
    try:
        for step in steps:
            sentences += step.notices(workload, project, version)
    except ValueError as error:
        refuse(workload, [str(error)])
    return [sentence for sentence in sentences if sentence]


def _uncommitted(project: Project) -> str | None:
    """What differs from the commit, except the versions of data, of which their step tells."""
    changed = project.uncommitted or {"files": []}
    names = [name for name in changed["files"] if not name.endswith(".dvc")]
    if not names:
        return None
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return (
        "These files differ from the commit that the run is recorded with: "
        f"{', '.join(names[:NAMED])}{more}."
    )


def refuse(workload: Workload, faults: Iterable[str]) -> None:
    """Refuses a workload, if there are faults.

    Raises:
        UsageError: With a line for each fault.
    """
    if lines := [*faults]:
        raise UsageError(f"workload {workload.name}: " + "\n".join(lines))


def check_surroundings(project: Project, workers: int = 0) -> None:
    """Checks the machine, and the servers that a run uses.

    Args:
        project: The clone.
        workers: How many workers of Ray train.

    Raises:
        UsageError: The machine lacks something.
        ConnectionError: A server that the environment names does not answer within seconds.
    """
    if lacking := "\n".join(lacks(workers)):
        raise UsageError(lacking)
    check_servers(project)


def lacks(workers: int = 0) -> Iterator[str]:
    """What a run needs and this machine lacks: a sentence for each, with what to do.

    Args:
        workers: How many workers of Ray train.
    """
    space, folder = messages.least_space()
    if space < messages.MIN_BYTES:
        yield f"{space / 1e9:.1f} GB are left in {folder}: make room there"
    try:
        getpass.getuser()
    except (KeyError, OSError):
        yield f"user {os.getuid()} has no name on this machine, which DVC needs: export USER=NAME"
    if workers and (fault := ray_cluster.socket_path_fault()):
        yield fault


def check_servers(project: Project) -> None:
    """Checks the servers that the environment names.

    Raises:
        ConnectionError: One does not answer within seconds.
    """
    tracking.check(project)
    ray_cluster.check()
