"""Notifies people by a webhook when a run failed, or a model was rejected or waits for them.

The webhook's URL is a secret, so it comes from the environment, in `RETRAIN_WEBHOOK_URL`, and is
never shown or stored. The body is `{"text": "…"}`, which Slack and similar services accept.
"""

import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun, State

URL = "RETRAIN_WEBHOOK_URL"
SECONDS = 10.0

logger = logging.getLogger("retrain")


def notify(flow: "Flow[..., Any]", flow_run: "FlowRun", state: "State[Any]") -> None:
    """A hook of a flow, for each of its final states.

    Prefect calls it, so it is also called for a run that was terminated or whose process was lost.
    """
    if message := _message(state):
        deployed = flow_run.deployment_id is not None
        _tell(flow_run.parameters, flow_run.id, deployed, message)


def notify_now(message: str) -> None:
    """Notifies people from within a flow run, which goes on or is suspended."""
    from prefect import runtime

    run = runtime.flow_run
    _tell(run.parameters, UUID(run.id), runtime.deployment.id is not None, message)


def _tell(parameters: Mapping[str, Any], run: UUID, deployed: bool, message: str) -> None:
    """Sends a message about a flow run, if there is a webhook."""
    if not os.environ.get(URL):
        return
    place = f"run {run}"
    if deployed:  # its server stays up, unlike that of a run from the command line
        from prefect.utilities.urls import url_for

        place = url_for("flow-run", obj_id=run) or place
    send(f"{run_name(parameters)}: {message} ({place})")


def run_name(parameters: Mapping[str, Any]) -> str:
    """The name that a flow run goes by, from its parameters."""
    named = (parameters.get(each) for each in ("as_name", "workload", "b"))
    return str(next(filter(None, named), "retrain"))


def send(text: str) -> None:
    """Posts a text to the webhook, if there is one; logs a warning if that fails."""
    url = os.environ.get(URL)
    if not url:
        return
    failures = [f"no answer within {SECONDS:g} s"]
    # A thread, because the timeout of a connection does not cover the DNS lookup.
    thread = Thread(target=_post, args=(url, text, failures), daemon=True)
    thread.start()
    thread.join(SECONDS)
    if failures:
        logger.warning("The message to the webhook of %s failed: %s.", URL, failures[-1])


def _message(state: "State[Any]") -> str | None:
    """The message about the end of a run; None if there is nothing to report."""
    if not state.is_completed():
        return f"the run {'failed' if state.is_failed() else 'crashed'}. {state.message or ''}"
    document = state.result(raise_on_failure=False)
    if not isinstance(document, dict) or document["unchanged"]:
        return None
    told = document.get("rejected") or document.get("waiting")
    return str(document["outcome"]) if told else None


def _post(url: str, text: str, failures: list[str]) -> None:
    """Posts a text, and adds to the list why that failed, without the URL that errors may hold."""
    content = json.dumps({"text": text}).encode()
    headers = {"Content-Type": "application/json"}
    try:
        if not url.startswith(("http://", "https://")):
            raise ValueError("no web address")
        request = urllib.request.Request(url, content, headers)
        with urllib.request.urlopen(request, timeout=SECONDS):
            failures.clear()
    except urllib.error.HTTPError as error:
        failures.append(f"it answered {error.code}")
    except TimeoutError:  # while it waits for the answer; it has the same limit as the thread
        pass
    except Exception as error:
        reason = getattr(error, "reason", error)
        failures.append(f"it could not be reached ({type(reason).__name__})")
