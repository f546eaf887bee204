"""Who is told what happened: people by a webhook, and the automations of Prefect by its events.

What the webhook gets is `{"text": "…", "event": "…"}`, which Slack and similar services accept: a
sentence, with the path of the report and a link to the run. The URL, `RETRAIN_WEBHOOK_URL`, is a
secret, so it comes from the environment, and is never shown or stored.
"""

import json
import logging
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

Event = Literal["promoted", "rejected", "waiting", "failed", "drift", "worse"]

URL = "RETRAIN_WEBHOOK_URL"
SECONDS = 10.0
# What happened, by the name of the state in which a flow run is completed; the others are no news.
EVENTS: Mapping[str | None, Event] = {
    "Promoted": "promoted",
    "Rejected": "rejected",
    "Waiting": "waiting",
    "Drifted": "drift",
    "Worse": "worse",
}

logger = logging.getLogger("retrain")


def subject_of(parameters: Mapping[str, Any]) -> str:
    """The workload or the model that a flow run is about, by its parameters."""
    return str(parameters.get("as_name") or parameters.get("workload") or "retrain")


def notify(event: Event, subject: str, text: str) -> None:
    """Sends an event to the webhook, if there is one; logs a warning if that fails.

    The warning has no words of the error, which may hold the URL.

    Args:
        event: What happened.
        subject: The workload or the model.
        text: What happened, with links.
    """
    url = os.environ.get(URL)
    if not url:
        return
    body = json.dumps({"text": f"{subject}: {text}", "event": event}).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=SECONDS).close()
    except Exception as error:
        cause = getattr(error, "reason", None)  # of an error of `urllib`
        kind = type(cause if isinstance(cause, Exception) else error).__name__
        reason = getattr(error, "code", None) or kind
        logger.warning("The message by %s failed: %s.", URL, reason)


def notify_of_end(flow: object, flow_run: "FlowRun", state: "State[Any]") -> None:
    """A hook of a flow, for its final states; after a crash, `retrain.runs.liveness` calls it."""
    event, message = EVENTS.get(state.name), state.message or ""
    if not state.is_completed():
        event = "failed"
        message = f"the run {'failed' if state.is_failed() else 'crashed'}: {message}"
    if event:
        links = _links(flow_run.id, flow_run.deployment_id is not None)
        notify(event, subject_of(flow_run.parameters), f"{message}{links}")


def emit(event: str, name: str, payload: dict[str, Any]) -> None:
    """Emits an event of Prefect about a model, on which an automation can start a run."""
    from prefect.events import emit_event

    resource = {"prefect.resource.id": f"retrain.model.{name}", "prefect.resource.name": name}
    emit_event(event, resource, payload=payload)


def _links(run: UUID, is_deployed: bool) -> str:
    """Lines with the path of a run's report, and with the run."""
    report = next(map(str, Path().glob(f"reports/*/{run}.html")), "")  # runs work in this folder
    place = str(run)
    if is_deployed:  # its server stays up, unlike that of a run from the command line
        from prefect.utilities.urls import url_for

        place = url_for("flow-run", obj_id=run) or place
    return (f"\nreport: {report}" if report else "") + f"\nrun: {place}"
