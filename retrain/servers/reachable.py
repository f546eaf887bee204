"""Checks that a server on another machine answers, within seconds.

The libraries themselves wait for minutes for a server that is down.
"""

import json
import os
import socket
from typing import Any
from urllib.parse import urlsplit

from retrain.errors import UsageError
from retrain.logins import has_login, without_login

SECONDS = 5.0
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433, "ray": 10001}
# Where the login of a server belongs, by the variable with its URL.
LOGINS = {
    "MLFLOW_TRACKING_URI": "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    "PREFECT_API_URL": "PREFECT_API_AUTH_STRING",
}
# The preface of a connection of HTTP/2, which gRPC uses: a server sends its settings back.
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def check(name: str, address: str, probe: str = "") -> None:
    """Checks that a server answers, if its address is one on a network.

    Args:
        name: The environment variable with the address, for the message.
        address: A URL of HTTP or of a database; for Ray `host:port` or `ray://host:port`.
        probe: A page of an HTTP server that needs little work, added to the address.

    Raises:
        ConnectionError: The server does not answer within seconds.
        UsageError: The URL of a server that is no database has a login.
    """
    from http.client import HTTPException

    scheme = urlsplit(address).scheme.partition("+")[0] if "://" in address else "ray"
    if name in LOGINS and scheme in ("http", "https") and has_login(address):
        raise UsageError(
            f"{name}: the URL has a login, which would stand in messages and logs. It belongs into "
            f"{LOGINS[name]}."
        )
    try:
        _ask(scheme, address, probe)
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)  # of an error of urllib
        raise ConnectionError(
            f"{name}: nothing answers at {without_login(address)} ({reason}). Start that server, "
            f"or correct {name}."
        ) from None


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
