"""Starts and stops the project's servers: Prefect with a worker, the MLflow UI, and Ray.

`supervisor` runs them in the background, on loopback only, until `down`, and starts one again that
dies. What it is told is in `.retrain/supervisord.conf`, with which its own command works, too:

    .venv/bin/supervisorctl -c .retrain/supervisord.conf status
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from configparser import ConfigParser
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import psutil

from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.servers.program import MARK, POOL, end_processes
from retrain.servers.ray_cluster import HOST
from retrain.servers.reachable import request

WORKER = "local-worker"
CONFIGURATION = "supervisord.conf"
SOCKET = "supervisor.sock"
# A Unix socket's path has at most 103 bytes on macOS; supervisor adds its pid for a moment.
MAX_SOCKET_PATH = 103 - 9

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
        name: Its name for supervisor, and of its log.
        title: Its name in messages, without an article.
        url: Its address: of its pages for a browser, or of Ray; None for the worker.
        module: The module that is run, and its arguments.
        other_port: How a person chooses another port.
        stop_signal: The signal that ends it.
    """

    name: str
    title: str
    url: str | None
    module: tuple[str, ...] = ()
    other_port: str = ""
    stop_signal: str = "TERM"


def up(project: Project) -> list[Service]:
    """Starts the services that do not run yet, and registers the deployments of `prefect.yaml`.

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
    api = server_api(project)
    services = [_prefect_server(api), *_mlflow_ui(project), *_ray(), _worker()]
    project.logs.parent.mkdir(parents=True, exist_ok=True)
    with locked(project.state / "services.lock"):
        alive = {service.name for service in running(project)}
        missing = [service for service in services if service.name not in alive]
        for service in missing:
            _refuse_taken_port(service)
        _configure(project, services, api)
        try:
            _start(project, api, [each for each in missing if each.name != "worker"])
            _create_pool(api)
            _deploy(project, api)
            _start(project, api, [each for each in missing if each.name == "worker"])
        except BaseException:
            _stop(project, [service.name for service in missing], entirely=not alive)
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
        _stop(project, names, entirely=True)
    return names


def running(project: Project) -> list[Service]:
    """The services that `up` started and that are alive, in the order of their start."""
    states = _states(project)
    if not states:
        return []
    known = ConfigParser(interpolation=None)
    known.read(project.state / CONFIGURATION, encoding="utf-8")
    services = []
    for name, title in known["titles"].items():
        if states.get(name, {}).get("statename") in ALIVE:
            url = known["addresses"].get(name)
            if name == ray_cluster.SERVICE:
                url = ray_cluster.shared_address(project)
            services.append(Service(name, title, url))
    return services


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


def _prefect_server(api: str) -> Service:
    address = urlsplit(api)
    if address.hostname not in (HOST, "localhost") or not address.port:
        raise UsageError(
            f"The Prefect server is configured as {api}, but it can only be started here on "
            f"http://{HOST}:PORT/api: unset PREFECT_API_URL, or correct prefect.toml."
        )
    port = str(address.port)
    return Service(
        "prefect",
        "Prefect server",
        f"http://{HOST}:{port}",
        ("prefect", "server", "start", "--host", HOST, "--port", port),
        "put another one into api.url in prefect.toml (or export PREFECT_API_URL)",
    )


def _mlflow_ui(project: Project) -> list[Service]:
    """MLflow's server on the project's database; none if the project uses another MLflow server."""
    if not project.tracking_uri.startswith("sqlite:"):
        return []
    port = os.environ.get("MLFLOW_PORT", "5000")
    module = (
        *("mlflow", "server", "--host", HOST, "--port", port, "--workers", "1"),
        *("--backend-store-uri", project.tracking_uri),
        *("--default-artifact-root", str(project.root / "mlruns")),
    )
    other_port = "export MLFLOW_PORT with another one"
    return [Service("mlflow", "MLflow UI", f"http://{HOST}:{port}", module, other_port)]


def _ray() -> list[Service]:
    """A Ray that runs share; none if there is already a cluster."""
    if ray_cluster.is_remote():
        return []
    module = (
        *("ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address", HOST),
        *("--num-cpus", str(ray_cluster.logical_cpus())),
        *("--object-store-memory", str(psutil.virtual_memory().total // 10)),
        *("--include-dashboard", "false", "--disable-usage-stats"),
    )
    # Killed, because it takes 17 s to end on SIGTERM; it has nothing to lose.
    return [Service(ray_cluster.SERVICE, "Ray", None, module, stop_signal="KILL")]


def _worker() -> Service:
    start = ("prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", WORKER)
    return Service("worker", "Prefect worker", None, start)


def _configure(project: Project, services: Iterable[Service], api: str) -> None:
    """Writes supervisor's configuration, and starts supervisor if it does not run.

    Raises:
        UsageError: A service runs with other settings; or the project's path is too long.
    """
    file, former = project.state / CONFIGURATION, ""
    if len(os.fsencode(project.state / SOCKET)) > MAX_SOCKET_PATH:
        raise UsageError(f"{project.root}: the path is too long for a Unix socket. Clone it above.")
    with suppress(FileNotFoundError):
        former = file.read_text(encoding="utf-8")
    project.logs.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8") as written:
        _configuration(project, services).write(written)
    supervisor = _supervisor(project)
    if not _states(project):
        end_processes(f"{project.state}:")  # what a killed supervisor has left
        command = [sys.executable, "-m", "supervisor.supervisord", "-c", str(file)]
        subprocess.run(command, env=_environment(project, api), check=True, capture_output=True)
        _until_answers(project)
        return
    [[added, changed, _]] = supervisor.reloadConfig()
    titles = {service.name: service.title for service in services}
    alive = {service.name for service in running(project)}
    for name in alive & {*changed}:
        file.write_text(former, encoding="utf-8")
        raise UsageError(
            f"The {titles[name]} runs with another address or other settings than the configured "
            "ones: stop it first, with `make down`."
        )
    for name in changed:
        supervisor.removeProcessGroup(name)
    for name in (*added, *changed):
        supervisor.addProcessGroup(name)


def _configuration(project: Project, services: Iterable[Service]) -> ConfigParser:
    written, place = ConfigParser(interpolation=None), f"unix://{project.state / SOCKET}"
    written["unix_http_server"] = {"file": str(project.state / SOCKET), "chmod": "0700"}
    factory = "supervisor.rpcinterface:make_main_rpcinterface"
    written["rpcinterface:supervisor"] = {"supervisor.rpcinterface_factory": factory}
    written["supervisorctl"] = {"serverurl": place}
    written["supervisord"] = {
        "directory": str(project.root),
        "logfile": str(project.logs / "supervisord.log"),
        "pidfile": str(project.state / "supervisord.pid"),
    }
    for number, service in enumerate(services):
        arguments = ("-m", "retrain.servers.program", service.name, *service.module)
        written[f"program:{service.name}"] = SETTINGS | {
            "command": shlex.join((sys.executable, *arguments)),
            "environment": f'{MARK}="{project.state}:{service.name}"',
            "stdout_logfile": str(_log(project, service)),
            "stopsignal": service.stop_signal,
            "priority": str(number),  # they are stopped in the opposite order
        }
    for section in written.values():
        for name, value in section.items():
            section[name] = value.replace("%", "%%")
    # For `running`; supervisor takes no notice of these.
    written["titles"] = {service.name: service.title for service in services}
    written["addresses"] = {each.name: each.url for each in services if each.url}
    return written


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


def _until_answers(project: Project) -> None:
    deadline = monotonic() + START_SECONDS
    while not _states(project):
        if monotonic() > deadline:
            raise ValueError(f"supervisor did not start: see {project.logs / 'supervisord.log'}")
        sleep(0.1)


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
                log = _log(project, service)
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


def _stop(project: Project, names: Iterable[str], *, entirely: bool) -> None:
    """Stops services with all that they have started; entirely, with supervisor itself."""
    if states := _states(project):
        supervisor = _supervisor(project)
        if entirely:
            pid = supervisor.getPID()
            supervisor.shutdown()
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).wait()
        else:
            for name in names:
                if states[name]["statename"] in (*ALIVE, "BACKOFF"):
                    supervisor.stopProcess(name)
    for mark in [""] if entirely else names:
        end_processes(f"{project.state}:{mark}")


def _refuse_taken_port(service: Service) -> None:
    """Checks that a service's port is free.

    Raises:
        ValueError: It is not; the message names the process that uses it, and what to do.
    """
    if service.url is None:
        return
    port = urlsplit(service.url).port
    assert port
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


def _log(project: Project, service: Service) -> Path:
    return project.logs / f"{service.name}.log"


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


def _deploy(project: Project, api: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
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
        raise ValueError(f"The deployments of prefect.yaml were refused:\n{last}")
