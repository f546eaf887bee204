"""Ends the runs in Prefect and MLflow whose process was killed; they would go on there for ever.

A run holds its artifacts in the store from its start to its end, under a lock that the system
releases when the process ends in any way. So nothing has to be known about processes, hosts and
containers.
"""

import logging
from collections.abc import Collection
from contextlib import ExitStack, suppress
from typing import Any

from retrain import tracking
from retrain.project import Project
from retrain.runs import console
from retrain.store import Store

logger = logging.getLogger(__name__)

MESSAGE = "Its process was ended from outside."


def end_lost_runs(project: Project) -> None:
    """Marks runs as crashed in Prefect, and as killed in MLflow, if their process has ended.

    Only runs of this clone are known. If a server does not answer, the next call tries it again.
    """
    store = Store(project.store)
    if killed := store.runs.killed():
        try:
            mark_crashed(MESSAGE, killed)
            tracking.end_lost_runs(project, lambda key: _is_released(store, key))
        except Exception as error:  # must not keep this run from its work
            logger.warning("The runs that were killed could not be ended: %s", error)
            return
    store.runs.forget_killed()  # those of DVC, too


def _is_released(store: Store, key: str) -> bool:
    """Whether a step with a key was run in this clone and is not run now."""
    from filelock import Timeout

    steps = [step for step, locked_key in store.locks() if locked_key == key]
    with suppress(Timeout), ExitStack() as stack:
        for step in steps:
            stack.enter_context(store.lock(step, key, wait=False))
        return bool(steps)
    return False


def mark_crashed(message: str, runs: Collection[str]) -> None:
    """Marks flow runs that go on according to Prefect, and their tasks, as crashed.

    Args:
        message: The message of the state `Crashed`.
        runs: The ids of the flow runs.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.states import Crashed

    live: dict[str, Any] = {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}}
    run_filter = FlowRunFilter.model_validate(live | {"id": {"any_": sorted(runs)}})
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=run_filter):
            its_tasks = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
            for task in client.read_task_runs(flow_run_filter=its_tasks):
                if task.state and not task.state.is_final():
                    client.set_task_run_state(task.id, Crashed(message=message), force=True)
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
            console.say(f"Run {str(run.id)[:8]} is marked as crashed: its process was ended.")
