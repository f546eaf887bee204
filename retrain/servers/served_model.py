"""What the server of a workload answers with: a package that follows the champion.

When there is another champion, its package is fetched, and a process of its own loads it and
answers. A package that does not load or answer changes nothing, and people are notified once. What
is served is kept in a file, from which a server that was killed goes on.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import time
from typing import Any

import httpx

from retrain.disk import write_json
from retrain.errors import UsageError
from retrain.locks import holder_of, locked
from retrain.project import Project
from retrain.registry import packages, versions
from retrain.registry.versions import ModelVersion
from retrain.runs.notifications import notify
from retrain.servers.reachable import SECONDS

SERVED = "RETRAIN_SERVED"  # in a server's environment: the file with its `ServedModel`
HEADER = "X-Retrain-Version"
AGAIN_SECONDS = 300.0  # until a package that could not be served is tried again
LOADING_SECONDS = 300  # the longest that a package may take to load, on a machine that is busy

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


def read(project: Project, name: str) -> ServedModel:
    """What the server of a workload was last to answer with."""
    with suppress(FileNotFoundError):
        text = _file(project, name).read_text(encoding="utf-8")
        return ServedModel(**json.loads(text))
    return ServedModel()


def version_at(url: str) -> int | None:
    """The version with which a server answers; None if it does not answer."""
    with suppress(httpx.HTTPError, ValueError):
        return int(httpx.get(f"{url}/ping", timeout=SECONDS).headers.get(HEADER, ""))
    return None


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
    def at(self, url: str) -> Iterator[None]:
        """Keeps other servers of the workload away, while this process serves it at an address.

        Raises:
            UsageError: There is another one.
        """
        from filelock import Timeout

        file = _file(self._project, self._name)
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.with_suffix(".lock")
        try:
            with locked(lock, wait=False):
                os.environ[SERVED] = str(file)
                is_here = Path(self.served.package).is_dir()
                self._write(url=url, pid=os.getpid(), **({} if is_here else {"version": None}))
                try:
                    yield
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


def _file(project: Project, name: str) -> Path:
    return project.state / "served" / f"{name}.json"


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
