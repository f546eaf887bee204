"""Ends the runs in Prefect and MLflow whose process was killed; there they would go on for ever.

A command holds a lock while it runs a flow, and the name of the lock is a tag of its flow run. The
system releases the lock when the process ends in any way, so nothing has to be known about
processes, hosts and containers. A run that has begun its steps also holds its artifacts in the
store, on a worker too.
"""

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain import tracking
from retrain.locks import locked
from retrain.project import Project
from retrain.runs import console
from retrain.store import Store

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

logger = logging.getLogger(__name__)

MESSAGE = "Its process was ended from outside."


@contextmanager
def marked(project: Project) -> Iterator[None]:
    """Marks the flow runs of the block, so that they are ended if this process is killed."""
    from prefect import tags

    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    mark = _folder(project) / f"{name}.lock"
    mark.parent.mkdir(parents=True, exist_ok=True)
    with locked(mark), tags(name):
        yield
        mark.unlink()  # it stays after an error, which may have kept Prefect from its last word


def are_there(project: Project) -> bool:
    """Whether a process was killed that ran a flow, or could not finish it properly."""
    with ExitStack() as stack:
        return bool(_free_marks(project, stack) or Store(project.store).killed_runs())


def end_lost_runs(project: Project) -> None:
    """Marks runs as crashed in Prefect, and as killed in MLflow, if their process has ended.

    Only runs of this clone are known. If a server does not answer, the next call tries it again.
    """
    store = Store(project.store)
    killed = store.killed_runs()
    with ExitStack() as stack:
        marks = _free_marks(project, stack)
        if not marks and not killed:
            return
        try:
            if _end_in_prefect([mark.stem for mark in marks], killed) or killed:
                tracking.end_lost_runs(project, lambda key: _is_released(store, key))
        except Exception as error:  # must not keep this run from its work
            logger.warning("The runs that were killed could not be ended: %s", error)
            return
        store.held()  # forgets the killed ones
        for mark in marks:
            mark.unlink()


def _free_marks(project: Project, stack: ExitStack) -> list[Path]:
    """The marks of processes that have ended; they stay locked as long as the stack is open."""
    free = []
    for mark in sorted(_folder(project).glob("*.lock")):
        from filelock import Timeout

        with suppress(Timeout):
            stack.enter_context(locked(mark, wait=False))
            free.append(mark)
    return free


def _is_released(store: Store, key: str) -> bool:
    """Whether a step with a key was run in this clone and is not run now."""
    from filelock import Timeout

    steps = [step for step, other in store.locks() if other == key]
    with suppress(Timeout), ExitStack() as stack:
        for step in steps:
            stack.enter_context(store.lock(step, key, wait=False))
        return bool(steps)
    return False


def _end_in_prefect(tags: list[str], ids: set[str]) -> int:
    """Marks flow runs, and their tasks, as crashed if they have not ended.

    Args:
        tags: Each is a tag of some of the flow runs.
        ids: The ids of the others.

    Returns:
        How many flow runs.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
    from prefect.states import Crashed

    filters = [{"tags": {"all_": [tag]}} for tag in tags]
    filters += [{"id": {"any_": sorted(ids)}}] if ids else []
    live = {"type": {"not_any_": ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]}}
    crashed: State[Any] = Crashed(message=MESSAGE)
    count = 0
    with get_client(sync_client=True) as client:
        for each in filters:
            chosen = FlowRunFilter.model_validate(each | {"state": live})
            for run in client.read_flow_runs(flow_run_filter=chosen):
                tasks = client.read_task_runs(
                    flow_run_filter=FlowRunFilter.model_validate({"id": {"any_": [run.id]}}),
                    task_run_filter=TaskRunFilter.model_validate({"state": live}),
                )
                for task in tasks:
                    client.set_task_run_state(task.id, crashed, force=True)
                client.set_flow_run_state(run.id, crashed, force=True)
                console.say(f"Run {str(run.id)[:8]} is marked as crashed: its process was ended.")
                count += 1
    return count


def _folder(project: Project) -> Path:
    return project.state / "processes"
