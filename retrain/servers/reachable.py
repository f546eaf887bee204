"""Checks that a server on another machine answers, within seconds.

The libraries themselves wait for minutes for a server that is down.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

from rich.markup import escape

from retrain.errors import UsageError
from retrain.logins import has_login, without_login
from retrain.runs import console

SECONDS = 5.0
PATIENT_SECONDS = 180.0
AGAIN_SECONDS = 2.0  # between two questions to a server that is away
# MLflow's client waits 2, 4, 8, … seconds before it asks a server again that is in trouble.
MLFLOW_RETRIES = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
FEW, MANY = "3", "6"
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433, "ray": 10001}
# Where the login of a server belongs, by the variable with its URL.
LOGINS = {
    "MLFLOW_TRACKING_URI": "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    "PREFECT_API_URL": "PREFECT_API_AUTH_STRING",
}
# The preface of a connection of HTTP/2, which gRPC uses: a server sends its settings back.
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"

_patience = 0.0  # seconds that `check` waits for a server that is away


@contextmanager
def patient() -> Iterator[None]:
    """Waits for minutes for a server that is away: in a run that is under way, for the block."""
    global _patience
    before = os.environ.get(MLFLOW_RETRIES, FEW)
    _patience = PATIENT_SECONDS
    os.environ[MLFLOW_RETRIES] = MANY if before == FEW else before  # else the user has chosen
    try:
        yield
    finally:
        _patience = 0.0
        os.environ[MLFLOW_RETRIES] = before


def check(name: str, address: str, probe: str = "") -> None:
    """Checks that a server answers, if its address is one on a network.

    Args:
        name: The environment variable with the address, for the message.
        address: A URL of HTTP or of a database; for Ray `host:port` or `ray://host:port`.
        probe: A page of an HTTP server that needs little work, added to the address.

    Raises:
        ConnectionError: The server does not answer within seconds; see `patient`.
        UsageError: The URL of a server that is no database has a login.
    """
    from http.client import HTTPException

    global _patience
    scheme = urlsplit(address).scheme.partition("+")[0] if "://" in address else "ray"
    if name in LOGINS and scheme in ("http", "https") and has_login(address):
        raise UsageError(
            f"{name}: the URL has a login, which would stand in messages and logs. It belongs into "
            f"{LOGINS[name]}."
        )
    deadline, has_told = monotonic() + _patience, False
    while True:
        try:
            return _ask(scheme, address, probe)
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)  # of an error of urllib
            message = f"{name}: nothing answers at {without_login(address)} ({reason})."
        if monotonic() > deadline:
            _patience = 0.0  # once is enough
            raise ConnectionError(f"{message} Start that server, or correct {name}.")
        if not has_told:
            console.say(escape(f"{message} The run waits for it."))
        has_told = True
        sleep(AGAIN_SECONDS)


def request(url: str, body: Any = None, seconds: float = 10.0) -> tuple[int | None, str]:
    """Asks a server on this machine: with a body as JSON by POST, else by GET.

    Returns:
        The HTTP status and the answer; None and the reason if there is no answer.
    """
    from http.client import HTTPConnection, HTTPException

    address = urlsplit(url)
    connection = HTTPConnection(address.netloc, timeout=seconds)
    content = None if body is None else json.dumps(body)
    try:
        connection.request(
            "GET" if body is None else "POST",
            address.path,
            content,
            {"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        return None, str(error)
    finally:
        connection.close()


def answers_grpc(address: tuple[str, int], seconds: float) -> bool:
    """Whether a gRPC server, such as Ray's, answers at an address. Ray itself waits two minutes."""
    try:
        with socket.create_connection(address, timeout=seconds) as connection:
            connection.sendall(_HTTP2)
            return bool(connection.recv(1))
    except OSError:
        return False


def _ask(scheme: str, address: str, probe: str) -> None:
    """Asks a server for anything; a database without a server is not asked.

    Raises:
        OSError: The server does not answer within seconds.
        HTTPException: The server does not speak HTTP.
        ValueError: The address is not a valid one.
    """
    import ssl
    import urllib.error
    import urllib.request

    if scheme in ("http", "https"):
        try:
            urllib.request.urlopen(address.rstrip("/") + probe, timeout=SECONDS).close()
        except urllib.error.HTTPError:
            pass  # an answer; what it means is for the library
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ssl.SSLError):  # the library may know the certificate
                raise
        return
    url = urlsplit(address if "://" in address else f"//{address}")
    port = url.port or PORTS.get(scheme)
    if not url.hostname or port is None:
        return
    if scheme != "ray" or os.environ.get("RAY_USE_TLS"):
        socket.create_connection((url.hostname, port), timeout=SECONDS).close()
    elif not answers_grpc((url.hostname, port), SECONDS):
        raise ConnectionError("it is no Ray, or it is down")
