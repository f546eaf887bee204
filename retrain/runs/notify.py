"""Tells people how a run ended, by a webhook: a run that failed, and a model that was rejected.

The webhook's URL is a secret, so it comes from the environment, in `RETRAIN_WEBHOOK_URL`, and is
never shown or kept. What is sent is what Slack and its likes take: `{"text": "…"}`.
"""

import json
import logging
import os
import urllib.error
import urllib.request
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun, State

URL = "RETRAIN_WEBHOOK_URL"
SECONDS = 10.0

logger = logging.getLogger("retrain")


def notify(flow: "Flow[..., Any]", flow_run: "FlowRun", state: "State[Any]") -> None:
    """A hook of a flow, for each of the states that it may end in.

    It is Prefect that calls it, so that it is called for a run that is terminated or whose process
    is lost, too.
    """
    said = _news(state)
    if said is None or not os.environ.get(URL):
        return
    place = f"run {flow_run.id}"
    if flow_run.deployment_id:  # on a server that stays, unlike that of a run from a shell
        from prefect.utilities.urls import url_for

        place = url_for("flow-run", obj_id=flow_run.id) or place
    send(f"{flow_run.parameters.get('workload', flow.name)}: {said} ({place})")


def send(text: str) -> None:
    """Posts a text to the webhook, if there is one; that it cannot be reached is a warning."""
    url = os.environ.get(URL)
    if not url:
        return
    failures: list[str] = ["no answer within 10 s"]
    # A thread, because the time limit of a connection does not count the look-up of its name.
    thread = Thread(target=_post, args=(url, text, failures), daemon=True)
    thread.start()
    thread.join(SECONDS)
    if failures:
        logger.warning("The webhook of %s was not told: %s.", URL, failures[-1])


def _news(state: "State[Any]") -> str | None:
    """What to tell of how a run ended; None if all is well."""
    if not state.is_completed():
        return f"the run {'failed' if state.is_failed() else 'crashed'}. {state.message or ''}"
    document = state.result(raise_on_failure=False)
    if not isinstance(document, dict) or document["unchanged"] or not document.get("rejected"):
        return None
    return str(document["outcome"])


def _post(url: str, text: str, failures: list[str]) -> None:
    """Posts a text, and leaves in the list why that failed; no error's own words, for the URL."""
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
    except Exception as error:
        reason = getattr(error, "reason", error)
        failures.append(f"it could not be reached ({type(reason).__name__})")
