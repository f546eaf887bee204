"""Processes that go on in the background after the command that started them.

What was started is written to `.retrain/services.json`. A process is known by its pid together
with its start time, so that a stranger that is given the pid later is never taken for it.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import urlsplit

import psutil
from filelock import FileLock

from retrain.project import Project
from retrain.store import write_json

# In the environment of a service and of all that it starts: the service's log. A flow's run has a
# session of its own, and is left over when its worker is killed; by this it is found.
MARK = "RETRAIN_SERVICE_LOG"

START_SECONDS = 180.0  # a first start migrates a database, on a machine that may be busy
STOP_SECONDS = 15.0
CLOCK_SECONDS = 2.0  # start times move when the system's clock is set
LOG_LINES = 12


@dataclass(frozen=True)
class Service:
    """A process that runs in the background.

    Attributes:
        name: Of what it does.
        url: Where a browser finds it; None if it has no pages.
        pid: The process, which leads a session of its own.
        created: When it was started, in seconds since 1970.
        log: The file with what it has printed.
        address: Where other programs find it, `host:port`; None where `url` says that.
        stateless: Whether nothing is lost when it is killed, so that it need not be waited for.
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
    """What to start as a service.

    Attributes:
        name: The service's.
        title: What a person calls it, without an article.
        arguments: Of this Python: `-m`, a module, and the module's arguments.
        ready: Tells whether the service that was started can be used.
        url: Where a browser will find it; its port must be free.
        other_port: How a person chooses another port.
        address: Where other programs will find it, `host:port`; None where `url` says that.
        stateless: Whether nothing is lost when it is killed.
    """

    name: str
    title: str
    arguments: Sequence[str]
    ready: Callable[[Service], bool]
    url: str | None = None
    other_port: str = ""
    address: str | None = None
    stateless: bool = False


def lock(project: Project) -> FileLock:
    """The lock to hold while services are started or stopped."""
    project.state.mkdir(parents=True, exist_ok=True)
    return FileLock(project.state / "services.lock")


def read_services(project: Project) -> list[Service]:
    """The services that were started and not stopped, in that order; some may be dead."""
    try:
        return [Service(**fields) for fields in json.loads(_services_file(project).read_text())]
    except FileNotFoundError:
        return []


def write_services(project: Project, services: Sequence[Service]) -> None:
    """Writes down which services were started and not stopped."""
    if services:
        write_json(_services_file(project), [asdict(service) for service in services])
    else:
        _services_file(project).unlink(missing_ok=True)


def is_alive(service: Service) -> bool:
    """Whether the process that was started is still there."""
    return _leader(service) is not None


def environment(service: Service) -> dict[str, str]:
    """The environment of a service's process; empty when that has ended."""
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
            trouble = f"ended at its start with exit code {process.returncode}"
        elif monotonic() > deadline:
            trouble = f"was not ready within {START_SECONDS:.0f} s"
        else:
            sleep(0.2)
            continue
        last = Path(service.log).read_text(errors="replace").splitlines()[-LOG_LINES:]
        raise ValueError(f"The {program.title} {trouble}; {service.log} ends:\n" + "\n".join(last))


def stop(services: Iterable[Service]) -> None:
    """Ends services one after the other, with all that they have started, and waits for it."""
    for service in services:
        processes = _processes(service)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill() if service.stateless else process.terminate()
        _, stubborn = psutil.wait_procs(processes, timeout=STOP_SECONDS)
        for process in stubborn:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(stubborn, timeout=STOP_SECONDS)


def refuse_taken_port(program: Program) -> None:
    """Looks whether a program's port is free.

    Raises:
        ValueError: It is not; with who has it, and what to do.
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
    """Who listens on a port, as far as the system tells."""
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid
            if listens and connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return "another process"


def _processes(service: Service) -> set[psutil.Process]:
    """All processes of a service, those included that outlived the one that started them."""
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
        ours = abs(process.create_time() - service.created) < CLOCK_SECONDS
        return process if ours and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _services_file(project: Project) -> Path:
    return project.state / "services.json"
