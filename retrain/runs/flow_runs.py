"""What Prefect shows of a flow run: its name, and the name and the message of its final state."""

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from retrain.messages import message_of

P = ParamSpec("P")

logger = logging.getLogger("retrain")


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
