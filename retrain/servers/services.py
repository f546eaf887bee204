"""Starts and stops the project's servers: Prefect with a worker, and the MLflow UI.

`supervisor` runs them in the background, on loopback only, until `down`, and starts one again that
dies. Its configuration is `.retrain/supervisord.conf`. While they run, the clone's `.env` names the
Prefect server, and Prefect's own commands read it there.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
from dotenv import dotenv_values, set_key, unset_key

from retrain.disk import write_text
from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from retrain.servers import databases
from retrain.servers.program import MARK, POOL, end_processes
from retrain.servers.reachable import answers

CONFIGURATION_FILE = "supervisord.conf"
SOCKET = "supervisor.sock"
HOST = "127.0.0.1"
USUAL_PORTS = {"prefect": 4200, "mlflow": 5000}
START_SECONDS = 180.0  # a first start migrates a database, on a machine that may be busy
LOG_LINES = 12
ALIVE = ("STARTING", "RUNNING")
API = "PREFECT_API_URL"

CONFIGURATION = """\
; The servers of this clone, written by `retrain up`. Supervisor's own command works, too:
;     .venv/bin/supervisorctl -c .retrain/supervisord.conf status

[supervisord]
directory = {root}
logfile = {state}/logs/supervisord.log
pidfile = {state}/supervisord.pid
environment = PREFECT_API_URL="http://{host}:{prefect}/api",PREFECT_HOME="{home}"

[unix_http_server]
file = {state}/supervisor.sock
chmod = 0700

[supervisorctl]
serverurl = unix://{state}/supervisor.sock

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""

# One that dies within ten seconds is tried again after 1, 2, 3, … seconds: for over an hour. The
# last one is stopped first.
PREFECT = """
[program:prefect]
command = {program} prefect prefect server start --host {host} --port {prefect}
priority = 1{more}
"""
MLFLOW = """
[program:mlflow]
command = {program} mlflow mlflow server --host {host} --port {mlflow} --workers 1
  --backend-store-uri "{tracking}" --default-artifact-root "{root}/mlruns"
priority = 2{more}
"""
WORKER = """
[program:worker]
command = {program} worker prefect worker start --pool {pool} --type process --name local-worker
priority = 3{more}
"""
MORE = """
environment = {mark}="{state}:%(program_name)s"
stdout_logfile = {state}/logs/%(program_name)s.log
stdout_logfile_maxbytes = 10MB
stdout_logfile_backups = 2
redirect_stderr = true
autorestart = true
startsecs = 10
startretries = 100
stopasgroup = true
killasgroup = true
stopwaitsecs = 15"""
# The page of each that answers when it can be used; the worker has Prefect make its pool.
PAGES = {"prefect": "/api/health", "mlflow": "/health", "worker": f"/api/work_pools/{POOL}"}


def up(project: Project) -> tuple[dict[str, str | None], list[str]]:
    """Starts the services if they do not run yet, and registers the deployments.

    Args:
        project: The clone that the services belong to.

    Returns:
        All services as `services_of` gives them, also those that already ran: `prefect`, `mlflow`,
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
    """The services that `up` started and that are alive, in the order of their start."""
    states = _states(project)
    return {
        name: url
        for name, url in services_of(project).items()
        if states.get(name, {}).get("statename") in ALIVE
    }


def services_of(project: Project) -> dict[str, str | None]:
    """The services that supervisor's configuration describes, in the order of their start.

    Returns:
        The address of the pages of each for a browser, None for the worker, by its name for
        supervisor, which its log has, too.
    """
    file = project.state / CONFIGURATION_FILE
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    ports = re.findall(r"^\[program:(\w+)\]\n.*?(?:--port (\d+).*)?$", text, re.MULTILINE)
    return {name: f"http://{HOST}:{port}" if port else None for name, port in ports}


def is_ready(project: Project, name: str) -> bool:
    """Whether a service can be used."""
    urls = services_of(project)
    return answers(f"{urls[name] or urls['prefect']}{PAGES[name]}")


def server_api(project: Project) -> str:
    """The URL of the API of the Prefect server that the clone uses; empty if it uses none.

    As for Prefect's own commands it is `PREFECT_API_URL`, in the environment or in the clone's
    `.env`; there, that of `up` counts only while the services run.
    """
    if url := os.environ.get(API):
        return url.rstrip("/")
    named = _in_env_file(project)
    is_ended = named == _own_api(project) and not running(project)
    return "" if is_ended else named.rstrip("/")


def forget_ended(project: Project) -> None:
    """Takes the server of `up` out of the clone's `.env` if it has ended."""
    if _in_env_file(project) == _own_api(project) and not running(project):
        unset_key(project.root / ".env", API)


def _in_env_file(project: Project) -> str:
    """The Prefect server that the clone's `.env` names; empty if there is none."""
    return dotenv_values(project.root / ".env").get(API) or ""


def _own_api(project: Project) -> str:
    """Where the Prefect server of the clone's last `up` is, or was."""
    return f"{services_of(project).get('prefect')}/api"


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
    file = project.state / CONFIGURATION_FILE
    write_text(file, _configuration(project, ports))
    process = _run(project, "supervisor.supervisord", "-c", str(file))
    if process.returncode:
        raise ValueError(f"supervisord did not start:\n{process.stdout}")
    set_key(project.root / ".env", API, _own_api(project), quote_mode="never")


def _free(usual: int) -> int:
    """The usual port if it is free, else another one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a server just ended
        try:
            probe.bind((HOST, usual))
        except OSError:
            probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _configuration(project: Project, ports: Mapping[str, int]) -> str:
    """The text of supervisor's configuration file."""
    values: dict[str, object] = {
        **{"root": project.root, "state": project.state, "tracking": project.tracking_uri},
        **{"home": databases.of_prefect(project).parent, "pool": POOL},
        **{"program": f'"{sys.executable}" -m retrain.servers.program', "host": HOST, "mark": MARK},
        **ports,
    }
    safe = {name: str(value).replace("%", "%%") for name, value in values.items()}
    safe["more"] = MORE.format(**safe)
    # Whoever names an MLflow server has one already.
    mlflow = MLFLOW if project.tracking_uri.startswith("sqlite:") else ""
    return (CONFIGURATION + PREFECT + mlflow + WORKER).format(**safe)


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


def _wait(project: Project) -> None:
    """Waits until each service can be used.

    Raises:
        ValueError: One has ended, or took too long; with the last lines of its log.
    """
    deadline = monotonic() + START_SECONDS
    for name in services_of(project):
        while not is_ready(project, name):
            info = _states(project)[name]
            if info["statename"] not in ALIVE or monotonic() > deadline:
                log = Path(info["stdout_logfile"])
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                last = "\n".join(lines[-LOG_LINES:])
                raise ValueError(f"{name} did not start; {log} ends:\n{last}")
            sleep(0.2)


def _stop(project: Project) -> None:
    """Stops supervisor and all services, with what they have started."""
    if _states(project):
        supervisor = _supervisor(project)
        pid = supervisor.getPID()
        supervisor.shutdown()
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait()
    end_processes(f"{project.state}:")
    forget_ended(project)


def _deploy(project: Project) -> list[str]:
    """Has Prefect register the deployments of `prefect.yaml`; returns their names.

    Raises:
        ValueError: Prefect refuses one.
    """
    process = _run(project, "prefect", "--no-prompt", "deploy", "--all")
    # Prefect skips an invalid entry; the exit code is 0 if others are valid.
    if process.returncode or "Skipping" in process.stdout:
        last_lines = "\n".join(process.stdout.splitlines()[-LOG_LINES:])
        raise ValueError(f"The deployments of prefect.yaml were refused:\n{last_lines}")
    return re.findall(r"Deployment '(.+)' successfully", process.stdout)


def _run(project: Project, *module: str) -> "subprocess.CompletedProcess[str]":
    """Runs a module in the clone, where Prefect reads `prefect.toml` and `.env`."""
    own = {"PREFECT_CLI_COLORS": "false", "COLUMNS": "500"}
    # Six fewer processes: jobs are for the evaluation of language models.
    own |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    api = server_api(project)
    return subprocess.run(
        [sys.executable, "-m", *module],
        cwd=project.root,
        env=own | os.environ | ({API: api} if api else {}),  # an empty variable hides `.env`
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
