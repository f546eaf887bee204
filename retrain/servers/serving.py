"""Serves the champion of a workload, and the next one when it is promoted: `retrain serve`.

    python -m retrain.servers.serving NAME HOST PORT WORKERS

MLflow's own app answers in worker processes of uvicorn. When another version is to answer, they are
replaced one after the other, each when its successor is ready; meanwhile both versions answer.
"""

import logging
import os
import signal
import sys
from contextlib import suppress
from threading import Event, Thread
from time import sleep
from typing import Any, NoReturn

from uvicorn import Config
from uvicorn.supervisors import Multiprocess

from retrain.errors import UsageError
from retrain.project import find_project
from retrain.servers.scoring import Connection
from retrain.servers.served_model import LOADING_SECONDS, Follower

PORT = 5001
SECONDS = 3.0  # between two looks for another champion
ANSWERING_SECONDS = 60  # the longest that a request may take, as MLflow has it

logger = logging.getLogger("retrain")


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
    with suppress(KeyboardInterrupt), follower.at(f"http://{host}:{port}"):
        while not follower.follow() and follower.served.version is None:
            sleep(SECONDS)
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
        server = Workers(config, follower)
        server.run()
        return int(not server.is_stopped)
    return 0


class Workers(Multiprocess):
    """uvicorn's worker processes, which are replaced when another version is to answer.

    Attributes:
        is_stopped: Whether somebody has ended them; else they could not start.
    """

    def __init__(self, config: Config, follower: Follower) -> None:
        """Binds the address; the workers start with `run`."""
        super().__init__(config, [config.bind_socket()])
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


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        print(f"retrain: {error}", file=sys.stderr)
        sys.exit(2)
