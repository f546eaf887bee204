"""Starts and stops the project's servers: Prefect with a worker, the MLflow UI, and the champions'.

`supervisor` runs them in the background, on loopback only, until `down`, and starts one again that
dies: `deploy/supervisord.conf` describes them. While they run, the clone's `.env` names the Prefect
server, and Prefect's own commands read it there.
"""

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic, sleep
from typing import Any

import psutil
from dotenv import dotenv_values, set_key, unset_key

from retrain.errors import UsageError
from retrain.file_io import write_json, write_text
from retrain.locks import locked
from retrain.params import load_section, workload_names
from retrain.project import Project
from retrain.runs import console
from retrain.servers import databases, deployments, reachable, serving
from retrain.servers.program import POOL, end_processes
from retrain.workload import Serve

CONFIGURATION, DESCRIPTION = "deploy/supervisord.conf", "services.json"
HOST = "127.0.0.1"
USUAL_PORTS = {"prefect": 4200, "mlflow": 5000}
START_SECONDS = 180.0  # a first start makes a database, on a machine that may be busy
LOG_BYTES = 2000  # of the end of a log, for the message
API = deployments.API
SOCKET = "supervisor.sock"  # as deploy/supervisord.conf has it
ALIVE = ("STARTING", "RUNNING")  # as supervisor has it
# The page of each that answers when it can be used; the worker has Prefect make its pool.
PAGES = {"prefect": "/api/health", "mlflow": "/health", "worker": f"/api/work_pools/{POOL}"}
# The server of a champion, by the workload's name; the file with them is included.
SERVED, SERVE = "served.conf", "serve-"
PROGRAM = """
[program:serve-{name}]
command = "%(ENV_RETRAIN_PYTHON)s" -m retrain.cli serve {name}
priority = 4
environment = RETRAIN_SERVICE="%(ENV_RETRAIN_STATE)s:serve-{name}"
stdout_logfile = %(ENV_RETRAIN_STATE)s/logs/serve-{name}.log
stdout_logfile_maxbytes = 10MB
stdout_logfile_backups = 2
redirect_stderr = true
autorestart = true
startsecs = 10
startretries = 100
stopasgroup = true
killasgroup = true
stopwaitsecs = 15
"""


def up(project: Project) -> tuple[dict[str, str | None], list[str]]:
    """Starts the services that do not run yet, and registers the deployments.

    Args:
        project: The clone that the services belong to.

    Returns:
        All services as `running` gives them, also those that already ran: `prefect`, `mlflow`,
        `worker`, and `serve-NAME` of a workload; and the names of the deployments. There is no
        `mlflow` if the environment names the user's own server.

    Raises:
        UsageError: The clone uses another Prefect server, or its path is too long; or two
            workloads are to be served at the same port.
        ValueError: A service ended at its start, or a deployment was refused. The services that
            this call had started are stopped.
    """
    project.logs.mkdir(parents=True, exist_ok=True)
    with locked(project.state / "services.lock"), _choosing_ports(), ExitStack() as stack:
        served = _write_served(project)
        if running(project):
            command = ("-m", "supervisor.supervisorctl", "-c", CONFIGURATION, "update")
            subprocess.run([sys.executable, *command], cwd=project.root, stdout=subprocess.DEVNULL)
        else:
            stack.callback(_stop, project)
            _start(project)
        own = {name: url for name, url in _described(project).items() if name in PAGES}
        write_json(project.state / DESCRIPTION, own | served)
        _wait(project)
        registered = deployments.register(project, server_api(project))
        stack.pop_all()
    return running(project), registered


def down(project: Project) -> list[str]:
    """Stops every service that `up` started; returns the names of those that were running."""
    project.state.mkdir(parents=True, exist_ok=True)
    with locked(project.state / "services.lock"):
        names = list(running(project))
        _stop(project)
    return names


def running(project: Project) -> dict[str, str | None]:
    """The services that `up` started, while supervisor looks after them.

    Returns:
        The address of the pages of each for a browser, None for the worker, by its name for
        supervisor, which its log has, too.
    """
    states: dict[str, str] = {}
    with suppress(OSError):  # supervisor does not run
        found = _supervisor(project).getAllProcessInfo()
        states = {each["name"]: each["statename"] for each in found}
    urls = _described(project)
    return {name: urls[name] for name in urls if states.get(name, "STOPPED") != "STOPPED"}


def _described(project: Project) -> dict[str, str | None]:
    """What `running` gives, whether they run or not."""
    file = project.state / DESCRIPTION
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def is_ready(project: Project, name: str) -> bool:
    """Whether a service can be used, or waits for the first champion."""
    urls = _described(project)
    if name not in PAGES:
        served = serving.read(project, name.removeprefix(SERVE))
        waits = served.version is None
        return served.is_running and (waits or serving.version_at(str(urls[name])) is not None)
    return reachable.answers(f"{urls[name] or urls['prefect']}{PAGES[name]}")


def server_api(project: Project) -> str:
    """The URL of the API of the Prefect server that the clone uses; empty if it uses none.

    As for Prefect's own commands it is `PREFECT_API_URL`, in the environment or in the clone's
    `.env`; there, that of `up` counts only while the services run.
    """
    forget_ended(project)
    named = os.environ.get(API) or dotenv_values(project.root / ".env").get(API) or ""
    return named.rstrip("/")


def forget_ended(project: Project) -> None:
    """Takes the server of `up` out of the clone's `.env` if it has ended."""
    file = project.root / ".env"
    own = f"{_described(project).get('prefect')}/api"
    if dotenv_values(file).get(API) == own and not running(project):
        unset_key(file, API)


def _start(project: Project) -> None:
    """Starts supervisor, which starts the services.

    Raises:
        UsageError: The clone uses another Prefect server, or its path is too long.
        ValueError: Supervisor does not start; the message has its output.
    """
    if api := server_api(project):
        raise UsageError(
            f"{API} names {api}, which the runs of this clone use: take it out of the environment "
            "or of .env, and the servers can be started here."
        )
    if fault := socket_path_fault(project):
        raise UsageError(fault)
    databases.check(databases.of_prefect(project), "prefect")
    end_processes(f"{project.state}:")  # what a killed supervisor has left
    ports = {name: _free(port) for name, port in USUAL_PORTS.items()}
    urls: dict[str, str | None] = {name: f"http://{HOST}:{port}" for name, port in ports.items()}
    api = f"{urls['prefect']}/api"
    variables = {
        "RETRAIN_PYTHON": sys.executable,
        "RETRAIN_STATE": str(project.state),
        "RETRAIN_PREFECT_PORT": str(ports["prefect"]),
        "RETRAIN_MLFLOW_PORT": str(ports["mlflow"]),
        "RETRAIN_MLFLOW_URI": project.tracking_uri,
        # Whoever names an MLflow server has one already.
        "RETRAIN_MLFLOW": str(project.tracking_uri.startswith("sqlite:")),
        "PREFECT_HOME": str(databases.of_prefect(project).parent),
        API: api,
    }
    process = subprocess.run(
        [sys.executable, "-m", "supervisor.supervisord", "-c", CONFIGURATION],
        cwd=project.root,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    if process.returncode:
        raise ValueError(f"supervisord did not start:\n{process.stdout}")
    write_json(project.state / DESCRIPTION, urls | {"worker": None})
    set_key(project.root / ".env", API, api, quote_mode="never")


def socket_path_fault(project: Project) -> str | None:
    """Why supervisor cannot have its socket in the clone; None if it can."""
    # It binds another name first.
    path = f"{project.state}/{SOCKET}.{os.getpid()}"
    return reachable.socket_path_fault(path, "move the clone to a shorter path")


def _write_served(project: Project) -> dict[str, str | None]:
    """Describes the servers of champions for supervisor; their addresses by their names there.

    Raises:
        UsageError: Two have the same port.
    """
    urls: dict[str, str | None] = {}
    for name in workload_names(project.params):
        if port := load_section(project.params, name, Serve).port:
            urls[f"{SERVE}{name}"] = f"http://{HOST}:{port}"
    if len({*urls.values()}) < len(urls):
        raise UsageError("params.yaml: two workloads have the same serve.port.")
    programs = [PROGRAM.format(name=name.removeprefix(SERVE)) for name in urls]
    write_text(project.state / SERVED, "".join(programs))
    return urls


@contextmanager
def _choosing_ports() -> Iterator[None]:
    """Lets one clone of this machine at a time choose ports, until its servers listen there.

    Otherwise two that start at once, as after a reboot, would find the same port free, and the one
    whose server comes second would use the other one's.
    """
    folder = os.open("/tmp", os.O_RDONLY)  # which every user of the machine may lock
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.say("Waits until the servers of another clone have started.")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _free(usual: int) -> int:
    """The usual port if it is free, else another one."""
    with suppress(OSError), socket.create_server((HOST, usual)):
        return usual
    with socket.create_server((HOST, 0)) as probe:
        return int(probe.getsockname()[1])


def _supervisor(project: Project) -> Any:
    """The interface of the project's supervisor; a call raises `OSError` if it does not run."""
    from supervisor.childutils import getRPCInterface

    variables = {"SUPERVISOR_SERVER_URL": f"unix://{project.state}/{SOCKET}"}
    return getRPCInterface(variables).supervisor


def _wait(project: Project) -> None:
    """Waits until each service can be used.

    Raises:
        ValueError: One has ended, or took too long; with the last lines of its log.
    """
    deadline = monotonic() + START_SECONDS
    for name in filter(PAGES.get, running(project)):
        while not is_ready(project, name):
            supervisor = _supervisor(project)
            state = supervisor.getProcessInfo(name)["statename"]
            if state not in ALIVE or monotonic() > deadline:
                last, *_ = supervisor.tailProcessStdoutLog(name, 0, LOG_BYTES)
                log = project.relative(project.logs / f"{name}.log")
                raise ValueError(f"{name} did not start; {log} ends:\n{last}")
            sleep(0.2)


def _stop(project: Project) -> None:
    """Stops supervisor and all services, with what they have started."""
    with suppress(OSError, psutil.NoSuchProcess):
        supervisor = _supervisor(project)
        process = psutil.Process(supervisor.getPID())
        supervisor.shutdown()
        process.wait()
    end_processes(f"{project.state}:")
    forget_ended(project)
