"""Starts and stops the project's servers: Prefect with a worker, and the MLflow UI.

`supervisor` runs them in the background, on loopback only, until `down`, and starts one again that
dies. Its configuration is `.retrain/supervisord.conf`, with which its own command works, too:

    .venv/bin/supervisorctl -c .retrain/supervisord.conf status
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import psutil

from retrain.atomic import write_text
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from retrain.servers.program import MARK, POOL, end_processes
from retrain.servers.reachable import request

CONFIGURATION = "supervisord.conf"
SOCKET = "supervisor.sock"
HOST = "127.0.0.1"
WORKER = "local-worker"
START_SECONDS = 180.0  # a first start migrates a database, on a machine that may be busy
LOG_LINES = 12
ALIVE = ("STARTING", "RUNNING")

# A service that dies within ten seconds is tried again after 1, 2, 3, … seconds: for over an hour.
SETTINGS = {
    "autostart": "false",
    "autorestart": "true",
    "startsecs": "10",
    "startretries": "100",
    "stopasgroup": "true",
    "killasgroup": "true",
    "stopwaitsecs": "15",
    "redirect_stderr": "true",
    "stdout_logfile_maxbytes": "10MB",
    "stdout_logfile_backups": "2",
}


@dataclass(frozen=True)
class Service:
    """A server that `up` starts.

    Attributes:
        name: The name of the service for supervisor, in messages, and of its log.
        url: The address of its pages for a browser; None for the worker.
        module: The module that is run, and its arguments.
        other_port: How a person chooses another port; empty for the worker.
        health: The path of a page that answers when it is ready; empty for the worker.
    """

    name: str
    url: str | None
    module: tuple[str, ...]
    other_port: str = ""
    health: str = ""


def up(project: Project) -> tuple[list[Service], list[str]]:
    """Starts the services that do not run yet, and registers the deployments.

    Args:
        project: The clone that the services belong to.

    Returns:
        All services, also those that already ran: `prefect`, `mlflow`, `worker`; and the names of
        the deployments. There is no `mlflow` if the environment names the user's own server.

    Raises:
        UsageError: A service runs with other settings than the configured ones, or the Prefect
            server is configured on another machine.
        ValueError: A port is taken, a service ended at its start, or a deployment was refused.
            The services that this call had started are stopped.
    """
    api, services = server_api(project), services_of(project)
    _refuse_other_machine(api)
    project.logs.mkdir(parents=True, exist_ok=True)
    with locked(project.state / "services.lock"):
        alive = {service.name for service in running(project)}
        missing = [service for service in services if service.name not in alive]
        for service in missing:
            _refuse_taken_port(service)
        _start_supervisor(project, services, api)
        try:
            _start(project, api, missing)
            deployments = _deploy(project, api)
        except BaseException:
            if not alive:
                _stop(project)
            raise
        return running(project), deployments


def down(project: Project) -> list[str]:
    """Stops every service that `up` started; returns the names of those that were running."""
    project.state.mkdir(parents=True, exist_ok=True)
    with locked(project.state / "services.lock"):
        names = [service.name for service in running(project)]
        _stop(project)
    return names


def running(project: Project) -> list[Service]:
    """The services that `up` started and that are alive, in the order of their start."""
    states = _states(project)
    alive = {name for name, info in states.items() if info["statename"] in ALIVE}
    return [service for service in services_of(project) if service.name in alive] if alive else []


def server_api(project: Project) -> str:
    """The URL of the API of the project's Prefect server.

    It comes from the same settings as for Prefect's own command line: `PREFECT_API_URL`, else
    `api.url` in `prefect.toml`.
    """
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        settings = tomllib.loads((project.root / "prefect.toml").read_text(encoding="utf-8"))
        url = str(settings["api"]["url"])
    return url.rstrip("/")


def services_of(project: Project) -> list[Service]:
    """All services, in the order of their start."""
    url, port = server_api(project).removesuffix("/api"), os.environ.get("MLFLOW_PORT", "5000")
    prefect = ("prefect", "server", "start", "--host", HOST, "--port", str(urlsplit(url).port))
    change = "put another one into api.url in prefect.toml (or export PREFECT_API_URL)"
    services = [Service("prefect", url, prefect, change, health="/api/health")]
    if project.tracking_uri.startswith("sqlite:"):  # else there is an MLflow server already
        mlflow = (
            *("mlflow", "server", "--host", HOST, "--port", port, "--workers", "1"),
            *("--backend-store-uri", project.tracking_uri),
            *("--default-artifact-root", str(project.root / "mlruns")),
        )
        change = "export MLFLOW_PORT with another one"
        url = f"http://{HOST}:{port}"
        services.append(Service("mlflow", url, mlflow, change, health="/health"))
    worker = ("prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", WORKER)
    return [*services, Service("worker", None, worker)]


def _configuration(project: Project, services: Sequence[Service]) -> str:
    """The text of supervisor's configuration file."""
    sections: dict[str, Mapping[str, object]] = {
        "unix_http_server": {"file": project.state / SOCKET, "chmod": "0700"},
        "rpcinterface:supervisor": {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
        },
        "supervisorctl": {"serverurl": f"unix://{project.state / SOCKET}"},
        "supervisord": {
            "directory": project.root,
            "logfile": project.logs / "supervisord.log",
            "pidfile": project.state / "supervisord.pid",
        },
    }
    for number, service in enumerate(services):
        arguments = ("-m", "retrain.servers.program", service.name, *service.module)
        sections[f"program:{service.name}"] = SETTINGS | {
            "command": shlex.join((sys.executable, *arguments)),
            "environment": f'{MARK}="{project.state}:{service.name}"',
            "stdout_logfile": project.logs / f"{service.name}.log",
            "priority": number,  # they are stopped in the opposite order
        }
    lines = []
    for name, section in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {str(value).replace('%', '%%')}" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def _refuse_other_machine(api: str) -> None:
    address = urlsplit(api)
    if address.hostname not in (HOST, "localhost") or not address.port:
        raise UsageError(
            f"The Prefect server is configured as {api}, but it can only be started here on "
            f"http://{HOST}:PORT/api: unset PREFECT_API_URL, or correct prefect.toml."
        )


def _refuse_taken_port(service: Service) -> None:
    """Raises `ValueError` if the port of a service is taken."""
    if not service.other_port:
        return
    port = urlsplit(service.url or "").port
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise ValueError(
                f"Port {port}, for {service.name}, is used by another process: stop that, or "
                f"{service.other_port}."
            )


def _start_supervisor(project: Project, services: Sequence[Service], api: str) -> None:
    """Starts supervisor, which starts nothing yet, if it does not run.

    Raises:
        UsageError: Supervisor runs with another configuration.
        ValueError: Supervisor does not start; the message has its output.
    """
    file, text = project.state / CONFIGURATION, _configuration(project, services)
    if _states(project):
        if file.read_text(encoding="utf-8") != text:
            raise UsageError(
                "The servers run with other addresses or settings than the configured ones: stop "
                "them first, with `make down`."
            )
        return
    end_processes(f"{project.state}:")  # what a killed supervisor has left
    write_text(file, text)
    process = _run(project, api, "supervisor.supervisord", "-c", str(file))
    if process.returncode:
        raise ValueError(f"supervisord did not start:\n{process.stdout}")


def _supervisor(project: Project) -> Any:
    """The interface of the project's supervisor; a call raises `OSError` if it does not run."""
    from supervisor.childutils import getRPCInterface

    url = f"unix://{project.state / SOCKET}"
    return getRPCInterface({"SUPERVISOR_SERVER_URL": url}).supervisor


def _states(project: Project) -> dict[str, Mapping[str, Any]]:
    """The state of each service in supervisor, by its name; empty if supervisor does not run."""
    if not (project.state / SOCKET).exists():
        return {}
    try:
        return {info["name"]: info for info in _supervisor(project).getAllProcessInfo()}
    except OSError:
        return {}


def _start(project: Project, api: str, services: Sequence[Service]) -> None:
    """Starts services in parallel, and waits until each can be used.

    Raises:
        ValueError: One has ended, or took too long; with the last lines of its log.
    """
    supervisor, states = _supervisor(project), _states(project)
    for service in services:
        if states[service.name]["statename"] == "BACKOFF":  # it is being tried again
            supervisor.stopProcess(service.name)
        supervisor.startProcess(service.name, False)
    deadline = monotonic() + START_SECONDS
    for service in services:
        while not _is_ready(project, api, service, info := _states(project)[service.name]):
            if info["statename"] not in ALIVE or monotonic() > deadline:
                log = Path(info["stdout_logfile"])
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                last = "\n".join(lines[-LOG_LINES:])
                raise ValueError(f"{service.name} did not start; {log} ends:\n{last}")
            sleep(0.2)


def _is_ready(project: Project, api: str, service: Service, info: Mapping[str, Any]) -> bool:
    """Whether a service that was just started can be used."""
    if service.health:
        return request(f"{service.url}{service.health}")[0] == 200
    status, text = request(f"{api}/work_pools/{POOL}/workers/filter", {})
    return status == 200 and any(
        worker["name"] == WORKER
        and datetime.fromisoformat(worker["last_heartbeat_time"]).timestamp() > info["start"]
        for worker in json.loads(text)
    )


def _stop(project: Project) -> None:
    """Stops supervisor and all services, with what they have started."""
    if _states(project):
        supervisor = _supervisor(project)
        pid = supervisor.getPID()
        supervisor.shutdown()
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait()
    end_processes(f"{project.state}:")


def _deploy(project: Project, api: str) -> list[str]:
    """Has Prefect register the deployments of `prefect.yaml`; returns their names.

    Raises:
        ValueError: Prefect refuses one.
    """
    process = _run(project, api, "prefect", "--no-prompt", "deploy", "--all")
    # Prefect skips an invalid entry; the exit code is 0 if others are valid.
    if process.returncode or "Skipping" in process.stdout:
        last_lines = "\n".join(process.stdout.splitlines()[-LOG_LINES:])
        raise ValueError(f"The deployments of prefect.yaml were refused:\n{last_lines}")
    return re.findall(r"Deployment '(.+)' successfully", process.stdout)


def _run(project: Project, api: str, *module: str) -> "subprocess.CompletedProcess[str]":
    """Runs a module in the services' environment; other settings are in `prefect.toml`."""
    preset = {
        "PREFECT_HOME": str(project.state / "prefect"),
        # Six fewer processes: jobs are for the evaluation of language models.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    variables = {"PREFECT_API_URL": api, "PREFECT_CLI_COLORS": "false", "COLUMNS": "500"}
    return subprocess.run(
        [sys.executable, "-m", *module],
        cwd=project.root,
        env=preset | os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
