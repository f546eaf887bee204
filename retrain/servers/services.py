"""Starts and stops the project's servers: Prefect with a worker, the MLflow UI, and Ray.

`supervisor` runs them in the background, on loopback only, until `down`, and starts one again that
dies. What it is told is in `.retrain/supervisord.conf`, with which its own command works, too:

    .venv/bin/supervisorctl -c .retrain/supervisord.conf status
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
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
from retrain.servers import ray_cluster
from retrain.servers.program import POOL, end_processes
from retrain.servers.programs import (
    SOCKET,
    WORKER,
    Service,
    configuration,
    log_of,
    server_api,
    services_of,
)
from retrain.servers.ray_cluster import HOST
from retrain.servers.reachable import request

CONFIGURATION = "supervisord.conf"
# A Unix socket's path has at most 103 bytes on macOS; supervisor adds its pid for a moment.
MAX_SOCKET_PATH = 103 - 9

START_SECONDS = 180.0  # a first start migrates a database, on a machine that may be busy
LOG_LINES = 12
DEPLOYMENTS = (
    Path("prefect.yaml"),
    Path("team", "prefect.yaml"),
)  # those of this project, then own
ALIVE = ("STARTING", "RUNNING")


def up(project: Project) -> list[Service]:
    """Starts the services that do not run yet, and registers the deployments.

    Args:
        project: The clone that the services belong to.

    Returns:
        All services, also those that already ran: `prefect`, `mlflow`, `ray`, `worker`. There is
        no `mlflow` or `ray` if the environment names the user's own server or cluster.

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
            _start(project, api, [each for each in missing if each.name != "worker"])
            _create_pool(api)
            for file in DEPLOYMENTS:
                if (project.root / file).exists():
                    _deploy(project, api, file)
            _start(project, api, [each for each in missing if each.name == "worker"])
        except BaseException:
            if not alive:
                _stop(project)
            raise
        return running(project)


def down(project: Project) -> list[str]:
    """Stops every service that `up` started, and waits until they are gone.

    Returns:
        The names of those that were running.
    """
    project.state.mkdir(parents=True, exist_ok=True)
    with locked(project.state / "services.lock"):
        names = [service.name for service in running(project)]
        _stop(project)
    return names


def running(project: Project) -> list[Service]:
    """The services that `up` started and that are alive, in the order of their start."""
    states = _states(project)
    alive = {name for name, info in states.items() if info["statename"] in ALIVE}
    return [each for each in services_of(project) if each.name in alive] if alive else []


def _refuse_other_machine(api: str) -> None:
    address = urlsplit(api)
    if address.hostname not in (HOST, "localhost") or not address.port:
        raise UsageError(
            f"The Prefect server is configured as {api}, but it can only be started here on "
            f"http://{HOST}:PORT/api: unset PREFECT_API_URL, or correct prefect.toml."
        )


def _start_supervisor(project: Project, services: Sequence[Service], api: str) -> None:
    """Starts supervisor, which starts nothing yet, if it does not run.

    Raises:
        UsageError: It runs with another configuration; or the project's path is too long.
        ValueError: It does not start; with what it says of that.
    """
    if len(os.fsencode(project.state / SOCKET)) > MAX_SOCKET_PATH:
        raise UsageError(f"{project.root}: the path is too long for a Unix socket. Clone it above.")
    file, text = project.state / CONFIGURATION, configuration(project, services)
    if _states(project):
        if file.read_text(encoding="utf-8") != text:
            raise UsageError(
                "The servers run with other addresses or settings than the configured ones: stop "
                "them first, with `make down`."
            )
        return
    end_processes(f"{project.state}:")  # what a killed supervisor has left
    write_text(file, text)
    command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(file)]
    started = subprocess.run(
        command,
        env=_environment(project, api),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if started.returncode:
        reason = started.stdout.partition("\nFor help, use")[0].strip().rpartition("\n")[2]
        raise ValueError(f"supervisord did not start: {reason.removeprefix('Error: ')}")


def _supervisor(project: Project) -> Any:
    """The interface of the project's supervisor; a call raises `OSError` if it does not run."""
    from supervisor.childutils import getRPCInterface

    url = f"unix://{project.state / SOCKET}"
    return getRPCInterface({"SUPERVISOR_SERVER_URL": url}).supervisor


def _states(project: Project) -> dict[str, Mapping[str, Any]]:
    """What supervisor tells of each service, by its name; empty if it does not run."""
    if not (project.state / SOCKET).exists():
        return {}
    try:
        return {info["name"]: info for info in _supervisor(project).getAllProcessInfo()}
    except OSError:
        return {}


def _start(project: Project, api: str, services: Iterable[Service]) -> None:
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
            fault = None
            if info["statename"] not in ALIVE:
                fault = f"ended at its start with exit code {info['exitstatus']}"
            elif monotonic() > deadline:
                fault = f"was not ready within {START_SECONDS:.0f} s"
            if fault:
                log = log_of(project, service)
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                last = "\n".join(lines[-LOG_LINES:])
                raise ValueError(f"The {service.title} {fault}; {log} ends:\n{last}")
            sleep(0.2)


def _is_ready(project: Project, api: str, service: Service, info: Mapping[str, Any]) -> bool:
    """Whether a service that was just started can be used."""
    if service.name == "prefect":
        return request(f"{api}/health")[0] == 200
    if service.name == "mlflow":
        return request(f"{service.url}/health")[0] == 200
    if service.name == ray_cluster.SERVICE:
        address = ray_cluster.shared_address(project)
        return address is not None and ray_cluster.answers(address)
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


def _refuse_taken_port(service: Service) -> None:
    """Checks that a service's port is free.

    Raises:
        ValueError: It is not; the message names the process that uses it, and what to do.
    """
    port = urlsplit(service.url or "").port
    if port is None:  # it takes a free one, or listens to nobody
        return
    with socket.socket() as probe:
        is_taken = probe.connect_ex((HOST, port)) == 0
    if is_taken:
        raise ValueError(
            f"Port {port}, for the {service.title}, is used by {_listener(port)}: "
            f"stop that, or {service.other_port}."
        )


def _listener(port: int) -> str:
    """The process that listens on a port, if the system shows it."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "another process"


def _environment(project: Project, api: str) -> dict[str, str]:
    """The services' environment; Prefect's other settings are in `prefect.toml`."""
    preset = {
        "PREFECT_HOME": str(project.state / "prefect"),
        # Six fewer processes: jobs are for the evaluation of language models.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    return preset | os.environ | ray_cluster.token(project) | {"PREFECT_API_URL": api}


def _create_pool(api: str) -> None:
    status, answer = request(f"{api}/work_pools/", {"name": POOL, "type": "process"})
    if status not in (201, 409):  # created, or exists already
        raise ValueError(f"The Prefect server did not create the work pool {POOL!r}: {answer}")


def _deploy(project: Project, api: str, file: Path) -> None:
    """Registers the deployments of a file, by its path below the project's folder."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file],
        cwd=project.root,
        env=_environment(project, api) | {"PREFECT_CLI_COLORS": "false"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    # Prefect skips an invalid entry; the exit code is 0 if others are valid.
    if done.returncode or "Skipping" in done.stdout:
        last = "\n".join(done.stdout.splitlines()[-LOG_LINES:])
        raise ValueError(f"The deployments of {file} were refused:\n{last}")
