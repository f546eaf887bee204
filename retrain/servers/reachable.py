"""Checks that a server answers, within seconds.

The libraries themselves wait for minutes for a server that is down.
"""

import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from retrain import NO_PROXY
from retrain.errors import UsageError, has_login, without_login

SECONDS = 5.0
SOCKET_BYTES = 107  # of the path of a socket, at most (AF_UNIX)
PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433, "ray": 10001}
# Where the login of a server belongs, by the variable with its URL.
LOGINS = {
    "MLFLOW_TRACKING_URI": "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    "PREFECT_API_URL": "PREFECT_API_AUTH_STRING",
}


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
    url = urlsplit(address if "://" in address else f"ray://{address}")
    scheme = url.scheme.partition("+")[0]
    is_web = scheme in ("http", "https")
    if is_web and name in LOGINS and has_login(address):
        raise UsageError(
            f"{name}: the URL has a login, which would stand in messages and logs. It belongs into "
            f"{LOGINS[name]}."
        )
    try:
        if is_web:  # whose certificate it is, is for the library, which may know it
            httpx.get(address.rstrip("/") + probe, timeout=SECONDS, verify=False)
        elif url.hostname and (port := url.port or PORTS.get(scheme)):
            socket.create_connection((url.hostname, port), timeout=SECONDS).close()
    except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
        if "_ALERT_" in str(error):  # of TLS: it answers, and wants what the library may have
            return
        raise ConnectionError(
            f"{name}: nothing answers at {without_login(address)} ({error}). Start that server, or "
            f"correct {name}."
        ) from error


def proxy_fault() -> str | None:
    """Why Prefect's own commands would not reach a server on this machine; None if they do."""
    if "http" not in getproxies() or "127.0.0.1" in NO_PROXY or NO_PROXY == "*":
        return None
    return (
        "Prefect's own commands would look for 127.0.0.1 behind the proxy of this shell: "
        "export NO_PROXY=127.0.0.1,localhost"
    )


def socket_path_fault(path: str, remedy: str) -> str | None:
    """Why a server of this machine cannot have its socket at a path; None if it can."""
    if len(os.fsencode(path)) <= SOCKET_BYTES:
        return None
    return f"{path} is too long for a socket, which may have {SOCKET_BYTES} bytes: {remedy}"


def answers(url: str) -> bool:
    """Whether a server has a page, and gives it within seconds."""
    try:
        return httpx.get(url, timeout=SECONDS, verify=False).is_success  # reads no certificates
    except httpx.HTTPError:
        return False
