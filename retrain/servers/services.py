"""Starts and stops the project's servers: Prefect with a worker, and the MLflow UI.

`supervisor` runs them in the background, on loopback only, until `down`, and starts one again that
dies: `deploy/supervisord.conf` describes them. While they run, the clone's `.env` names the Prefect
server, and Prefect's own commands read it there.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import psutil
from dotenv import dotenv_values, set_key, unset_key

from retrain.disk import write_json
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from retrain.servers import databases
from retrain.servers.program import POOL, end_processes
from retrain.servers.reachable import answers

CONFIGURATION, DESCRIPTION = "deploy/supervisord.conf", "services.json"
HOST = "127.0.0.1"
USUAL_PORTS = {"prefect": 4200, "mlflow": 5000}
START_SECONDS = 180.0  # a first start makes a database, on a machine that may be busy
LOG_LINES, LOG_BYTES = 12, 2000
API = "PREFECT_API_URL"
ALIVE, NOT_STARTED = ("STARTING", "RUNNING"), "STOPPED"  # as supervisor has it
# The page of each that answers when it can be used; the worker has Prefect make its pool.
PAGES = {"prefect": "/api/health", "mlflow": "/health", "worker": f"/api/work_pools/{POOL}"}


def up(project: Project) -> tuple[dict[str, str | None], list[str]]:
    """Starts the services if they do not run yet, and registers the deployments.

    Args:
        project: The clone that the services belong to.

    Returns:
        All services as `running` gives them, also those that already ran: `prefect`, `mlflow`,
        `worker`; and the names of the deployments. There is no `mlflow` if the environment names
        the user's own server.

    Raises:
        UsageError: The clone uses another Prefect server.
        ValueError: A service ended at its start, or a deployment was refused. The services that
            this call had started are stopped.
    """
    project.logs.mkdir(parents=True, exist_ok=True)
    with locked(project.state / "services.lock"):
        ran_before = running(project)
        try:
            if not ran_before:
                _start(project)
            _wait(project)
            return running(project), _deploy(project)
        except BaseException:
            if not ran_before:
                _stop(project)
            raise


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
    states = _states(project)
    return {
        name: url
        for name, url in _described(project).items()
        if states.get(name, NOT_STARTED) != NOT_STARTED
    }


def _described(project: Project) -> dict[str, str | None]:
    """What `running` gives, whether they run or not."""
    file = project.state / DESCRIPTION
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def is_ready(project: Project, name: str) -> bool:
    """Whether a service can be used."""
    urls = _described(project)
    return answers(f"{urls[name] or urls['prefect']}{PAGES[name]}")


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
        UsageError: The clone uses another Prefect server.
        ValueError: Supervisor does not start; the message has its output.
    """
    if api := server_api(project):
        raise UsageError(
            f"{API} names {api}, which the runs of this clone use: take it out of the environment "
            "or of .env, and the servers can be started here."
        )
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
    process = _run(project, variables, "supervisor.supervisord", "-c", CONFIGURATION)
    if process.returncode:
        raise ValueError(f"supervisord did not start:\n{process.stdout}")
    write_json(project.state / DESCRIPTION, urls | {"worker": None})
    set_key(project.root / ".env", API, api, quote_mode="never")


def _free(usual: int) -> int:
    """The usual port if it is free, else another one."""
    try:
        probe = socket.create_server((HOST, usual))
    except OSError:
        probe = socket.create_server((HOST, 0))
    with probe:
        return int(probe.getsockname()[1])


def _supervisor(project: Project) -> Any:
    """The interface of the project's supervisor; a call raises `OSError` if it does not run."""
    from supervisor.childutils import getRPCInterface

    url = f"unix://{project.state}/supervisor.sock"
    return getRPCInterface({"SUPERVISOR_SERVER_URL": url}).supervisor


def _states(project: Project) -> dict[str, str]:
    """The state of each service in supervisor, by its name; empty if supervisor does not run."""
    try:
        found = _supervisor(project).getAllProcessInfo()
    except OSError:
        return {}
    return {service["name"]: service["statename"] for service in found}


def _wait(project: Project) -> None:
    """Waits until each service can be used.

    Raises:
        ValueError: One has ended, or took too long; with the last lines of its log.
    """
    deadline = monotonic() + START_SECONDS
    for name in running(project):
        while not is_ready(project, name):
            if _states(project)[name] not in ALIVE or monotonic() > deadline:
                last, *_ = _supervisor(project).tailProcessStdoutLog(name, 0, LOG_BYTES)
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


def _deploy(project: Project) -> list[str]:
    """Has Prefect register the deployments of `prefect.yaml`; returns their names.

    Raises:
        ValueError: Prefect refuses one.
    """
    own = {API: server_api(project), "PREFECT_CLI_COLORS": "false", "COLUMNS": "500"}
    process = _run(project, own, "prefect", "--no-prompt", "deploy", "--all")
    # Prefect skips an invalid entry; the exit code is 0 if others are valid.
    if process.returncode or "Skipping" in process.stdout:
        last_lines = "\n".join(process.stdout.splitlines()[-LOG_LINES:])
        raise ValueError(f"The deployments of prefect.yaml were refused:\n{last_lines}")
    return re.findall(r"Deployment '(.+)' successfully", process.stdout)


def _run(
    project: Project, variables: Mapping[str, str], *module: str
) -> "subprocess.CompletedProcess[str]":
    """Runs a module in the clone, where Prefect reads `prefect.toml`."""
    return subprocess.run(
        [sys.executable, "-m", *module],
        cwd=project.root,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
