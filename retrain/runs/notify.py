"""Notifies people by a webhook and by e-mail of the events in `Event`.

What is sent is a sentence, with the path of the report and a link to the run. The webhook,
`RETRAIN_WEBHOOK_URL`, is sent `{"text": "…", "event": "…"}`, which Slack and similar services
accept. E-mails go to the addresses in `RETRAIN_MAIL_TO`, separated by commas, through the server
`RETRAIN_SMTP_URL`: `smtp://USER:PASSWORD@HOST:PORT`, where a password needs STARTTLS, or `smtps://`.
They are from `RETRAIN_MAIL_FROM`, or else from the first of the addresses.

Both URLs are secrets, so they come from the environment, and are never shown or stored.
"""

import json
import logging
import os
import smtplib
import ssl
import urllib.request
from collections.abc import Mapping
from email.message import EmailMessage
from email.utils import localtime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit
from uuid import UUID

from retrain.runs.flow_runs import subject_of

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.schemas.objects import FlowRun, State

Event = Literal["promoted", "rejected", "waiting", "failed", "drift", "worse"]

URL, SMTP = "RETRAIN_WEBHOOK_URL", "RETRAIN_SMTP_URL"
TO, FROM = "RETRAIN_MAIL_TO", "RETRAIN_MAIL_FROM"
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


def notify(event: Event, subject: str, text: str) -> None:
    """Sends an event by the ways that are set up; logs a warning if one fails.

    The warning has no words of the error, which may hold the URL.

    Args:
        event: What happened.
        subject: The workload or the model.
        text: What happened, with links.
    """
    for variable, send in ((URL, _post), (SMTP, _mail)):
        if url := os.environ.get(variable):
            try:
                send(url, event, subject, text)
            except Exception as error:
                code = getattr(error, "code", None) or getattr(error, "smtp_code", None)
                cause = getattr(error, "reason", None)  # of an error of `urllib`
                kind = type(cause if isinstance(cause, Exception) else error).__name__
                logger.warning("The message by %s failed: %s.", variable, code or kind)


def _post(url: str, event: Event, subject: str, text: str) -> None:
    """Posts an event to the webhook."""
    body = json.dumps({"text": f"{subject}: {text}", "event": event}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=SECONDS).close()


def _mail(url: str, event: Event, subject: str, text: str) -> None:
    """Sends an event by e-mail; a password only over TLS."""
    server, message = urlsplit(url), EmailMessage()
    message["Subject"], message["To"] = f"{subject}: {event}", os.environ[TO]
    message["Date"] = localtime()
    message["From"] = os.environ.get(FROM) or os.environ[TO].split(",")[0]
    message.set_content(f"{text}\n")
    tls, host = ssl.create_default_context(), server.hostname or ""
    if server.scheme == "smtps":
        smtp: smtplib.SMTP = smtplib.SMTP_SSL(host, server.port or 0, timeout=SECONDS, context=tls)
    else:
        smtp = smtplib.SMTP(host, server.port or 0, timeout=SECONDS)
    with smtp:
        smtp.ehlo()
        if server.scheme != "smtps" and (server.password or smtp.has_extn("starttls")):
            smtp.starttls(context=tls)
        if server.username and server.password:
            smtp.login(unquote(server.username), unquote(server.password))
        smtp.send_message(message)


def notify_of_end(flow: "Flow[..., Any]", flow_run: "FlowRun", state: "State[Any]") -> None:
    """A hook of a flow, for each of its final states.

    Prefect calls it, so it is also called for a run that was terminated or whose process was lost.
    """
    event, message = EVENTS.get(state.name), state.message or ""
    if not state.is_completed():
        event = "failed"
        message = f"the run {'failed' if state.is_failed() else 'crashed'}: {message}"
    if event:
        is_deployed = flow_run.deployment_id is not None
        links = _links(flow_run.id, is_deployed)
        notify(event, subject_of(flow_run.parameters), f"{message}{links}")


def emit(event: str, name: str, payload: dict[str, Any]) -> None:
    """Emits an event of Prefect about a model, on which an automation can start a run."""
    from prefect.events import emit_event

    about = {"id": f"retrain.model.{name}", "name": name}
    resource = {f"prefect.resource.{key}": value for key, value in about.items()}
    emit_event(event, resource, payload=payload)


def _links(run: UUID, is_deployed: bool) -> str:
    """Lines with the path of a run's report, and with the run."""
    report = next(map(str, Path().glob(f"reports/*/{run}.html")), "")  # runs work in this folder
    place = str(run)
    if is_deployed:  # its server stays up, unlike that of a run from the command line
        from prefect.utilities.urls import url_for

        place = url_for("flow-run", obj_id=run) or place
    return (f"\nreport: {report}" if report else "") + f"\nrun: {place}"
