"""The servers of a project: what each is, and what supervisor is told of them."""

import os
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.servers.program import MARK, POOL
from retrain.servers.ray_cluster import HOST

WORKER = "local-worker"
SOCKET = "supervisor.sock"

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


def services_of(project: Project) -> list[Service]:
    """All services, in the order of their start."""
    return [_prefect_server(project), *_mlflow_ui(project), *_ray(project), _worker()]


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


def _prefect_server(project: Project) -> Service:
    url = server_api(project).removesuffix("/api")
    return Service(
        "prefect",
        "Prefect server",
        url,
        ("prefect", "server", "start", "--host", HOST, "--port", str(urlsplit(url).port)),
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


def _ray(project: Project) -> list[Service]:
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
    url = ray_cluster.shared_address(project)
    return [Service(ray_cluster.SERVICE, "Ray", url, module, stop_signal="KILL")]


def _worker() -> Service:
    start = ("prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", WORKER)
    return Service("worker", "Prefect worker", None, start)


def configuration(project: Project, services: Sequence[Service]) -> str:
    """What supervisor is told, as the text of its file."""
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
            "stdout_logfile": log_of(project, service),
            "stopsignal": service.stop_signal,
            "priority": number,  # they are stopped in the opposite order
        }
    lines = []
    for name, section in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {str(value).replace('%', '%%')}" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def log_of(project: Project, service: Service) -> Path:
    """The file with a service's output."""
    return project.logs / f"{service.name}.log"
