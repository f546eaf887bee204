"""Starts, watches and stops processes that run in the background after their command has ended.

They are recorded in `.retrain/services.json`. A process is identified by its pid and its start
time, because the system may give the pid to another process later.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import urlsplit

import psutil

from retrain.atomic import write_json
from retrain.locks import locked
from retrain.project import Project

# In the environment of a service and of its child processes: the service's log. A flow run has a
# session of its own, and still runs when its worker is killed; this variable identifies it.
MARK = "RETRAIN_SERVICE_LOG"

START_SECONDS = 180.0  # a first start migrates a database, on a machine that may be busy
STOP_SECONDS = 15.0
CLOCK_SECONDS = 2.0  # start times move when the system's clock is set
LOG_LINES = 12


@dataclass(frozen=True)
class Service:
    """A process that runs in the background.

    Attributes:
        name: The name of the service.
        url: Its address for a browser; None if it has no pages.
        pid: The process, which leads a session of its own.
        created: When it was started, in seconds since 1970.
        log: The file with its output.
        address: Its address for other programs, `host:port`; None if that is in `url`.
        stateless: Whether it can be killed without losing data.
    """

    name: str
    url: str | None
    pid: int
    created: float
    log: str
    address: str | None = None
    stateless: bool = False


@dataclass(frozen=True)
class Program:
    """A program to start as a service.

    Attributes:
        name: The name of the service.
        title: Its name in messages, without an article.
        arguments: The arguments of Python: `-m`, a module, and the module's arguments.
        ready: Whether the service that was started can be used.
        url: Its address for a browser; the port must be free.
        other_port: How a person chooses another port.
        address: Its address for other programs, `host:port`; None if that is in `url`.
        stateless: Whether it can be killed without losing data.
    """

    name: str
    title: str
    arguments: Sequence[str]
    ready: Callable[[Service], bool]
    url: str | None = None
    other_port: str = ""
    address: str | None = None
    stateless: bool = False


def lock(project: Project) -> AbstractContextManager[None]:
    """The lock to hold while services are started or stopped."""
    project.state.mkdir(parents=True, exist_ok=True)
    return locked(project.state / "services.lock")


def read_services(project: Project) -> list[Service]:
    """The services that were started and not stopped, in that order; some may be dead."""
    try:
        return [
            Service(**fields)
            for fields in json.loads(_services_file(project).read_text(encoding="utf-8"))
        ]
    except FileNotFoundError:
        return []


def write_services(project: Project, services: Sequence[Service]) -> None:
    """Records which services were started and not stopped."""
    if services:
        write_json(_services_file(project), [asdict(service) for service in services])
    else:
        _services_file(project).unlink(missing_ok=True)


def is_alive(service: Service) -> bool:
    """Whether the process that was started still runs."""
    return _leader(service) is not None


def environment(service: Service) -> dict[str, str]:
    """The environment of a service's process; empty if the process has ended."""
    with suppress(psutil.Error):
        return dict(psutil.Process(service.pid).environ())
    return {}


def start(
    program: Program, project: Project, environment: Mapping[str, str]
) -> tuple[Service, "subprocess.Popen[bytes]"]:
    """Starts a program in the project's folder, in a session of its own, without waiting for it."""
    log = project.logs / f"{program.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, *program.arguments],
            cwd=project.root,
            env={**environment, MARK: str(log)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    created = psutil.Process(process.pid).create_time()
    service = Service(
        program.name, program.url, process.pid, created, str(log),
        program.address, program.stateless,
    )  # fmt: skip
    return service, process


def wait(program: Program, service: Service, process: "subprocess.Popen[bytes]") -> None:
    """Waits until a service that was just started can be used.

    Raises:
        ValueError: It has ended, or took too long; with the last lines of its log.
    """
    deadline = monotonic() + START_SECONDS
    while not program.ready(service):
        if process.poll() is not None:
            fault = f"ended at its start with exit code {process.returncode}"
        elif monotonic() > deadline:
            fault = f"was not ready within {START_SECONDS:.0f} s"
        else:
            sleep(0.2)
            continue
        last = (
            Path(service.log)
            .read_text(encoding="utf-8", errors="replace")
            .splitlines()[-LOG_LINES:]
        )
        raise ValueError(f"The {program.title} {fault}; {service.log} ends:\n" + "\n".join(last))


def stop(services: Iterable[Service]) -> None:
    """Stops services and their child processes, one service after the other, and waits for them."""
    for service in services:
        processes = _processes(service)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill() if service.stateless else process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=STOP_SECONDS)


def refuse_taken_port(program: Program) -> None:
    """Checks that a program's port is free.

    Raises:
        ValueError: It is not; the message names the process that uses it, and what to do.
    """
    if program.url is None:
        return
    port = urlsplit(program.url).port
    assert isinstance(port, int)
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    if taken:
        raise ValueError(
            f"Port {port}, for the {program.title}, is used by {_listener(port)}: "
            f"stop that, or {program.other_port}."
        )


def _listener(port: int) -> str:
    """The process that listens on a port, if the system shows it."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "another process"


def _processes(service: Service) -> set[psutil.Process]:
    """All processes of a service, including those whose parent has ended."""
    leader = _leader(service)
    found = {leader, *leader.children(recursive=True)} if leader else set()
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get(MARK) == service.log:
            found.add(process)
    return found - {psutil.Process(os.getpid())}


def _leader(service: Service) -> psutil.Process | None:
    """The process that was started for a service, if it is alive."""
    try:
        process = psutil.Process(service.pid)
        is_same = abs(process.create_time() - service.created) < CLOCK_SECONDS
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _services_file(project: Project) -> Path:
    return project.state / "services.json"
