"""What Prefect shows of flow runs: their names and final states."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from functools import wraps
from typing import Any, ParamSpec
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.runtime import flow_run
from prefect.states import Completed, Crashed, Failed

from retrain.errors import RejectedDataError, UsageError
from retrain.locks import Runs
from retrain.messages import message_of
from retrain.project import Project
from retrain.registry import tracking
from retrain.runs import console
from retrain.store import Store

P = ParamSpec("P")

logger = logging.getLogger("retrain")


def _is_needed(record: logging.LogRecord) -> bool:
    """Whether a line of Prefect has more than the state: no traceback of what the user can mend."""
    error = record.exc_info and record.exc_info[1]
    return not isinstance(error, UsageError | RejectedDataError)


for _name in ("prefect.engine", "prefect.flow_runs"):
    logging.getLogger(_name).addFilter(_is_needed)


def ending_in_a_state(body: Callable[P, Any]) -> Callable[P, Any]:
    """A function that returns the final state of the flow run in which it is called.

    Args:
        body: What the flow run does. If it returns a document, this is the data of the state, its
            `outcome` the message, and its `state` the name, or `Completed` if it has none. After
            an error, the state is `Failed`, and the error is what the caller gets.
    """

    @wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            ended = body(*args, **kwargs)
        except Exception as error:
            return Failed(message=" ".join(message_of(error).split()), data=error)
        if not isinstance(ended, dict):
            return ended
        logger.info(ended["outcome"])  # for a person who watches a deployment
        return Completed(name=ended.get("state"), message=ended["outcome"], data=ended)

    return run


def name_of(flow: str) -> str:
    """The name of the current flow run when it begins: its flow, and what it is about."""
    parameters: Mapping[str, Any] = flow_run.parameters
    parts = (flow, subject_of(parameters), parameters.get("version"))
    return "-".join(str(part) for part in parts if part)


def subject_of(parameters: Mapping[str, Any]) -> str:
    """The workload or the model that a flow run is about, by its parameters."""
    return str(parameters.get("as_name") or parameters.get("workload") or "retrain")


def name_by_data(flow: str, workload: str, version: str) -> None:
    """Names the current flow run by its workload and the version of its data."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_name(UUID(flow_run.id), f"{flow}-{workload}-{version[:8]}")


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


def end_runs_never_held(runs: Runs) -> None:
    """Marks runs as crashed that were killed when the clone's own Prefect had begun them.

    A process holds the store a moment later than Prefect makes the record of its run.

    Args:
        runs: Those of the clone. The server is the clone's own, too.
    """
    with get_client(sync_client=True) as client:
        begun = client.read_flow_runs(flow_run_filter=live(deployment_id={"is_null_": True}))
    if lost := runs.lost({str(run.id) for run in begun}):
        mark_crashed(MESSAGE, lost)


def live(**more: Any) -> FlowRunFilter:
    """The flow runs that go on according to Prefect."""
    states = {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}
    return FlowRunFilter.model_validate({"state": states, **more})


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
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=live(id={"any_": sorted(runs)})):
            its_tasks = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
            for task in client.read_task_runs(flow_run_filter=its_tasks):
                if task.state and not task.state.is_final():
                    client.set_task_run_state(task.id, Crashed(message=message), force=True)
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
            console.say(f"Run {str(run.id)[:8]} is marked as crashed: its process was ended.")
