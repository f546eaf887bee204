"""Notifies people by a webhook of five events: promoted, rejected, waiting, failed and drift.

The webhook's URL is a secret, so it comes from the environment, in `RETRAIN_WEBHOOK_URL`, and is
never shown or stored. The body is `{"text": "…", "event": "…"}`, which Slack and similar services
accept.
"""

import json
import logging
import os
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun, State

Event = Literal["promoted", "rejected", "waiting", "failed", "drift"]

URL = "RETRAIN_WEBHOOK_URL"
SECONDS = 10.0

logger = logging.getLogger("retrain")


def notify(event: Event, text: str) -> None:
    """Posts an event to the webhook, if there is one; logs a warning if that fails.

    The warning has no words of the error, which may hold the URL.
    """
    url = os.environ.get(URL)
    if not url:
        return
    body = json.dumps({"text": text, "event": event}).encode()
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=SECONDS).close()
    except Exception as error:
        reason = getattr(error, "code", None) or type(getattr(error, "reason", error)).__name__
        logger.warning("The message to the webhook of %s failed: %s.", URL, reason)


def notify_of_end(flow: "Flow[..., Any]", flow_run: "FlowRun", state: "State[Any]") -> None:
    """A hook of a flow, for each of its final states.

    Prefect calls it, so it is also called for a run that was terminated or whose process was lost.
    """
    if state.is_completed():
        document = state.result(raise_on_failure=False)
        if not isinstance(document, dict) or not (event := _event_of(document)):
            return
        message = str(document["outcome"])
    else:
        event = "failed"
        message = f"the run {'failed' if state.is_failed() else 'crashed'}. {state.message or ''}"
    is_deployed = flow_run.deployment_id is not None
    notify(event, _text(flow_run.parameters, flow_run.id, is_deployed, message))


def notify_now(event: Event, message: str) -> None:
    """Notifies people from within a flow run, which goes on or is suspended."""
    from prefect import runtime

    run, is_deployed = runtime.flow_run, runtime.deployment.id is not None
    notify(event, _text(run.parameters, UUID(run.id), is_deployed, message))


def run_name(parameters: Mapping[str, Any]) -> str:
    """The name that a flow run goes by, from its parameters."""
    names = (parameters.get(parameter) for parameter in ("as_name", "workload", "b"))
    return str(next(filter(None, names), "retrain"))


def _event_of(document: Mapping[str, Any]) -> Event | None:
    """What happened in a completed run, by its document; None if nothing is news."""
    if document.get("unchanged"):
        return None
    events: tuple[Event, ...] = ("promoted", "rejected", "waiting")
    return next((event for event in events if document.get(event)), None)


def _text(parameters: Mapping[str, Any], run: UUID, is_deployed: bool, message: str) -> str:
    place = f"run {run}"
    if is_deployed:  # its server stays up, unlike that of a run from the command line
        from prefect.utilities.urls import url_for

        place = url_for("flow-run", obj_id=run) or place
    return f"{run_name(parameters)}: {message} ({place})"
