"""Starts and stops the project's servers: Prefect with a worker, the MLflow UI, and Ray.

They run in the background, on loopback only, until `down`.
"""

import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from retrain.errors import UsageError
from retrain.project import Project
from retrain.servers import processes, ray_cluster
from retrain.servers.processes import LOG_LINES, Program, Service

HOST = "127.0.0.1"
POOL = "local"
WORKER = "local-worker"
# Ray's sockets have paths 65 characters longer than this folder's; the system's limit is 107.
MAX_SESSIONS_PATH = 107 - 65


def up(project: Project) -> list[Service]:
    """Starts the services that do not run yet, and registers the deployments of `prefect.yaml`.

    Args:
        project: The clone that the services belong to.

    Returns:
        All services, also those that already ran: `prefect`, `mlflow`, `ray`, `worker`. There is
        no `mlflow` or `ray` if the environment names the user's own server or cluster.

    Raises:
        UsageError: A service runs at another address than the configured one, or the Prefect
            server is configured on another machine.
        ValueError: A port is taken, a service ended at its start, or a deployment was refused.
            The services that this call had started are stopped.
    """
    api = server_api(project)
    servers = [_prefect_server(api), *_mlflow_ui(project), *_ray(project)]
    with processes.lock(project):
        known = running(project)
        processes.stop(each for each in processes.read_services(project) if each not in known)
        processes.write_services(project, known)
        missing = _missing(servers, known)
        for program in missing:
            processes.refuse_taken_port(program)
        services = list(known)
        try:
            _start(missing, services, project, api)
            _create_pool(api)
            _deploy(project, api)
            for worker in _missing([_worker(api)], known):
                _end_lost_runs(api)
                _start([worker], services, project, api)
        except BaseException:
            processes.stop(each for each in reversed(services) if each not in known)
            processes.write_services(project, known)
            raise
    return services


def down(project: Project) -> list[str]:
    """Stops every service that `up` started, and waits until they are gone.

    Args:
        project: The clone that the services belong to.

    Returns:
        The names of those that were running.
    """
    with processes.lock(project):
        names = [service.name for service in running(project)]
        # The worker first, so that it can still sign off at the server.
        services = processes.read_services(project)
        processes.stop(sorted(services, key=lambda service: service.name != "worker"))
        processes.write_services(project, [])
    return names


def running(project: Project) -> list[Service]:
    """The services that `up` started and that are alive."""
    return [each for each in processes.read_services(project) if processes.is_alive(each)]


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


def _prefect_server(api: str) -> Program:
    address = urlsplit(api)
    if address.hostname not in (HOST, "localhost") or not address.port:
        raise UsageError(
            f"The Prefect server is configured as {api}, but it can only be started here on "
            f"http://{HOST}:PORT/api: unset PREFECT_API_URL, or correct prefect.toml."
        )
    port = str(address.port)
    return Program(
        name="prefect",
        title="Prefect server",
        arguments=(
            *("-m", "retrain.servers.with_database", "prefect"),
            *("prefect", "server", "start", "--host", HOST, "--port", port),
        ),
        ready=lambda _: _request("GET", f"{api}/health")[0] == 200,
        url=f"http://{HOST}:{port}",
        other_port="put another one into api.url in prefect.toml (or export PREFECT_API_URL)",
    )


def _mlflow_ui(project: Project) -> list[Program]:
    """MLflow's server on the project's database; none if the project uses another MLflow server."""
    if not project.tracking_uri.startswith("sqlite:"):
        return []
    port = os.environ.get("MLFLOW_PORT", "5000")
    url = f"http://{HOST}:{port}"
    arguments = (
        *("-m", "retrain.servers.with_database", "mlflow"),
        *("mlflow", "server", "--host", HOST, "--port", port, "--workers", "1"),
        *("--backend-store-uri", project.tracking_uri),
        *("--default-artifact-root", str(project.root / "mlruns")),
    )
    return [
        Program(
            name="mlflow",
            title="MLflow UI",
            arguments=arguments,
            ready=lambda _: _request("GET", f"{url}/health")[0] == 200,
            url=url,
            other_port="export MLFLOW_PORT with another one",
        )
    ]


def _ray(project: Project) -> list[Program]:
    """A Ray that runs share; none if there is already a cluster."""
    if os.environ.get("RAY_ADDRESS"):
        return []
    with socket.socket() as probe:  # a free port: the Ray of another clone may run too
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    arguments = [
        *("-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--node-ip-address", HOST, "--port", str(port)),
        *("--num-cpus", str(ray_cluster.logical_cpus())),
        *("--object-store-memory", str(psutil.virtual_memory().total // 10)),
        *("--include-dashboard", "false", "--disable-usage-stats"),
    ]
    sessions = project.state / "ray"
    if len(os.fsencode(sessions)) <= MAX_SESSIONS_PATH:
        arguments += ["--temp-dir", str(sessions)]
    address = f"{HOST}:{port}"
    return [
        Program(
            name=ray_cluster.SERVICE,
            title="Ray",
            arguments=arguments,
            ready=lambda _: ray_cluster.answers(address),
            address=address,
            stateless=True,  # killed, because it takes 17 s to end on SIGTERM
        )
    ]


def _write_ray_token(project: Project) -> None:
    """Writes a new token, without which other users of this machine cannot run code on the Ray."""
    [path] = ray_cluster.token(project).values()
    Path(path).unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def _worker(api: str) -> Program:
    def ready(service: Service) -> bool:
        status, workers = _request("POST", f"{api}/work_pools/{POOL}/workers/filter", {})
        return status == 200 and any(
            worker["name"] == WORKER
            and datetime.fromisoformat(worker["last_heartbeat_time"]).timestamp() > service.created
            for worker in workers
        )

    start = ("-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process")
    return Program("worker", "Prefect worker", (*start, "--name", WORKER), ready)


def _missing(programs: Iterable[Program], known: Iterable[Service]) -> list[Program]:
    """The programs that are not among the services.

    Raises:
        UsageError: A service runs at another address than its program's.
    """
    urls = {service.name: service.url for service in known}
    for program in programs:
        if urls.get(program.name, program.url) != program.url:
            raise UsageError(
                f"The {program.title} runs at {urls[program.name]} and is configured for "
                f"{program.url} now: stop it first, with `make down`."
            )
    return [program for program in programs if program.name not in urls]


def _start(
    programs: Iterable[Program], services: list[Service], project: Project, api: str
) -> None:
    """Starts programs in parallel, adds them to the services, and waits until they are ready."""
    started = []
    for program in programs:
        if program.name == ray_cluster.SERVICE:
            shutil.rmtree(project.state / "ray", ignore_errors=True)  # of earlier sessions
            _write_ray_token(project)
        service, process = processes.start(program, project, _environment(project, api))
        services.append(service)
        processes.write_services(project, services)
        started.append((program, service, process))
    for each in started:
        processes.wait(*each)


def _environment(project: Project, api: str) -> dict[str, str]:
    """A service's environment; Prefect's other settings are in `prefect.toml`."""
    preset = {
        "PREFECT_HOME": str(project.state / "prefect"),
        # Six fewer processes: jobs are for the evaluation of language models.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    return preset | os.environ | ray_cluster.token(project) | {"PREFECT_API_URL": api}


def _create_pool(api: str) -> None:
    status, answer = _request("POST", f"{api}/work_pools/", {"name": POOL, "type": "process"})
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


def _end_lost_runs(api: str) -> None:
    """Marks runs as crashed that ended with an earlier worker, which could not report it.

    Otherwise they would count as running forever, and block the next run of their deployment.
    """
    wanted = {
        "work_pools": {"name": {"any_": [POOL]}},
        "flow_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}},
    }
    status, runs = _request("POST", f"{api}/flow_runs/filter", wanted)
    if status != 200:
        raise ValueError(f"The Prefect server did not list its runs: {runs}")
    crashed = {"type": "CRASHED", "message": "Its worker was stopped while it ran."}
    for run in runs:
        _request("POST", f"{api}/flow_runs/{run['id']}/set_state", {"state": crashed})


def _request(method: str, url: str, body: Any = None) -> tuple[int | None, Any]:
    """Sends a request to one of the servers.

    Returns:
        The HTTP status, and the body as JSON or else as text; None and the reason if there is no
        answer.
    """
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=10)
    content = None if body is None else json.dumps(body)
    try:
        connection.request(method, address.path, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return None, str(error)
    finally:
        connection.close()
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text
