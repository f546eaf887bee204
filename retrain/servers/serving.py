"""Serves the champion of a workload, and the next one when it is promoted: `retrain serve`.

    python -m retrain.servers.serving NAME HOST PORT WORKERS

MLflow's own app answers in worker processes of uvicorn. When there is another champion, its package
is fetched, and a process of its own loads it and answers. Then the workers are replaced one after
the other, each when its successor is ready; meanwhile both versions answer. A package that does not
load or answer changes nothing, and people are notified once. What is served is kept in a file, from
which a server that was killed goes on.
"""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread
from time import sleep, time
from typing import Any, NoReturn

import httpx
import psutil
from uvicorn import Config
from uvicorn.supervisors import Multiprocess

from retrain.errors import UsageError
from retrain.file_io import write_json
from retrain.locks import holder_of, locked
from retrain.project import Project, find_project
from retrain.registry import packages, versions
from retrain.registry.versions import ModelVersion
from retrain.runs.notifications import notify
from retrain.servers import reachable
from retrain.servers.scoring import HEADER, SERVED, Connection

PORT = 5001
SECONDS = 3.0  # between two looks for another champion
AGAIN_SECONDS = 300.0  # until a package that could not be served is tried again
LOADING_SECONDS = 300  # the longest that a package may take to load, on a machine that is busy
ANSWERING_SECONDS = 60  # the longest that a request may take, as MLflow has it

logger = logging.getLogger("retrain")


@dataclass(frozen=True)
class ServedModel:
    """What a server answers with.

    Attributes:
        url: The server's address; None if it was stopped.
        pid: Its process.
        version: The number of the version; None before there is a champion.
        package: The folder of its package.
        failed: The number of the champion, if that cannot be served.
        why: Why it cannot.
        retry: When it is tried again, in seconds since the epoch.
    """

    url: str | None = None
    pid: int = 0
    version: int | None = None
    package: str = ""
    failed: int | None = None
    why: str = ""
    retry: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether its process is there; else another program may have the address by now."""
        return self.url is not None and psutil.pid_exists(self.pid)


def read(project: Project, name: str) -> ServedModel:
    """What the server of a workload was last to answer with."""
    with suppress(FileNotFoundError):
        text = _file(project, name).read_text(encoding="utf-8")
        return ServedModel(**json.loads(text))
    return ServedModel()


def version_at(url: str) -> int | None:
    """The version with which a server answers; None if it does not answer."""
    with suppress(httpx.HTTPError, ValueError):
        return int(httpx.get(f"{url}/ping", timeout=reachable.SECONDS).headers.get(HEADER, ""))
    return None


def start(name: str, host: str, port: int, workers: int) -> NoReturn:
    """Makes this process, in the folder of the clone, the server of a workload."""
    arguments = [name, host, str(port), str(workers)]
    os.execv(sys.executable, [sys.executable, "-m", __name__, *arguments])


def main() -> int:
    """Serves until the process is told to end; returns its exit code."""
    name, host, port, workers = sys.argv[1:]
    logging.basicConfig(format="%(levelname)s:     %(message)s")
    logger.setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    follower = Follower(find_project(), name)
    config = Config(
        "retrain.servers.scoring:make_app",
        factory=True,
        http=Connection,
        host=host,
        port=int(port),
        workers=int(workers),
        access_log=False,
        timeout_worker_healthcheck=LOADING_SECONDS,
        timeout_graceful_shutdown=ANSWERING_SECONDS,
    )
    with suppress(KeyboardInterrupt), follower.at(config) as bound:
        while not follower.follow() and follower.served.version is None:
            sleep(SECONDS)
        server = Workers(config, bound, follower)
        server.run()
        return int(not server.is_stopped)
    return 0


class Follower:
    """Decides what a server answers with; only one for a workload.

    Attributes:
        served: What it is to answer with.
    """

    def __init__(self, project: Project, name: str) -> None:
        """Begins with what was last served, of the workload with a name."""
        self._project, self._name = project, name
        self.served = read(project, name)
        self._former = ServedModel()
        self._warned = ""

    @contextmanager
    def at(self, config: Config) -> Iterator[socket.socket]:
        """Keeps other servers of the workload away, while this process serves it at an address.

        Yields:
            The socket that has the address.

        Raises:
            UsageError: There is another one; or the address cannot be had.
        """
        from filelock import Timeout

        file = _file(self._project, self._name)
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_suffix(".lock")
        try:
            with locked(lock, wait=False), _bound(config) as bound:
                os.environ[SERVED] = str(file)
                url = f"http://{config.host}:{config.port}"
                is_here = Path(self.served.package).is_dir()
                self._write(url=url, pid=os.getpid(), **({} if is_here else {"version": None}))
                try:
                    yield bound
                finally:
                    self._write(url=None)
        except Timeout:
            raise UsageError(f"{self._name} is served already: {holder_of(lock)}.") from None

    def follow(self) -> bool:
        """Takes the champion over if it is another one and can be served.

        Returns:
            Whether `served` has another version now.
        """
        try:
            champion = versions.champion(self._project, self._name)
            if champion is None:
                return False
            if champion.version != self.served.version:
                return self._take(champion)
            if self.served.failed:
                self._write(failed=None, why="")
        except Exception as error:  # the registry may not answer for a while
            if self._warned != (said := f"{type(error).__name__}: {error}"):
                logger.warning("%s: the champion is not known: %s", self._name, said)
            self._warned = said
        return False

    def give_up(self, why: str) -> None:
        """Goes back to what was served before `follow` took the last version over."""
        failed = self.served.version
        self._write(version=self._former.version, package=self._former.package)
        if failed:
            self._refuse(failed, why)

    def _take(self, champion: ModelVersion) -> bool:
        if champion.version == self.served.failed and time() < self.served.retry:
            return False
        logger.info("%s is champion: its package is checked.", champion.title)
        try:
            package = packages.download(self._project, champion)
            _check(package)
        except ValueError as error:
            self._refuse(champion.version, str(error))
            return False
        self._former = self.served
        self._write(version=champion.version, package=str(package), failed=None, why="")
        logger.info("%s is served from now on.", champion.title)
        return True

    def _refuse(self, version: int, why: str) -> None:
        """Notes that the champion cannot be served; people are notified once of each version."""
        is_known = version == self.served.failed
        self._write(failed=version, why=why, retry=time() + AGAIN_SECONDS)
        stays = f"version {self.served.version} stays" if self.served.version else "nothing answers"
        text = f"the champion, version {version}, cannot be served, and {stays}: {why}"
        logger.error("%s: %s", self._name, text)
        if not is_known:
            notify("failed", self._name, text)

    def _write(self, **changes: Any) -> None:
        self.served = replace(self.served, **changes)
        write_json(_file(self._project, self._name), asdict(self.served))


class Workers(Multiprocess):
    """uvicorn's worker processes, which are replaced when another version is to answer.

    Attributes:
        is_stopped: Whether somebody has ended them; else they could not start.
    """

    def __init__(self, config: Config, bound: socket.socket, follower: Follower) -> None:
        """Takes the socket that has the address; the workers start with `run`."""
        super().__init__(config, [bound])
        self.is_stopped = False
        self._follower, self._replaced = follower, Event()
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def run(self) -> None:
        """Runs the workers until they are stopped."""
        Thread(target=self._follow, daemon=True).start()
        super().run()
        if not self.is_stopped:
            self._follower.give_up("its workers did not start")

    def restart_all(self) -> None:
        """Replaces the workers; goes back to the version before if one is not ready in time."""
        before = {*self.processes}
        super().restart_all()
        if before.intersection(self.processes) and not self.is_stopped:
            self._follower.give_up("a worker with it did not start")
            super().restart_all()
        self._replaced.set()

    def keep_subprocess_alive(self) -> None:
        """Starts workers anew that died."""
        for process in self.processes:  # else one that dies while it is asked is waited for
            process.child_conn.close()
        super().keep_subprocess_alive()

    def terminate_all(self) -> None:
        """Ends the workers; one that still loads would hear of it only when it has loaded."""
        for process in self.processes:
            if process.is_ready():
                process.terminate()
            else:
                process.kill()

    def _follow(self) -> None:
        while True:
            sleep(SECONDS)
            if self._follower.follow():
                self._replaced.clear()
                self.signal_queue.append(signal.SIGHUP)
                self._replaced.wait()

    def _stop(self, *_: Any) -> None:
        """Ends also a replacement that is under way, unlike uvicorn's own handler."""
        self.is_stopped = True
        # In a thread: what was interrupted may hold the lock of the event.
        Thread(target=self.should_exit.set).start()


def _file(project: Project, name: str) -> Path:
    return project.state / "served" / f"{name}.json"


def _bound(config: Config) -> socket.socket:
    """A socket that has the address of a server.

    Raises:
        UsageError: Another program has it, or the machine has no such address.
    """
    try:
        return config.bind_socket()
    except SystemExit:  # after a line that says why
        raise UsageError(
            f"{config.host}:{config.port} cannot be had, so nothing is served there: choose "
            "another port with --port, or by serve.port in params.yaml."
        ) from None


def _check(package: Path) -> None:
    """Has a process of its own load a package and ask it about an image.

    Raises:
        ValueError: It does not load or answer; the message is its last line of errors.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "retrain.servers.scoring", str(package)],
            env=os.environ | {"RETRAIN_LOG_PREDICTIONS": ""},  # it is no request
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOADING_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"it did not answer within {LOADING_SECONDS} s") from None
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        print(f"retrain: {error}", file=sys.stderr)
        sys.exit(2)
