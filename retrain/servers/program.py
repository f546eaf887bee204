"""Prepares one of the servers, then runs its module as `python -m` does.

    python -m retrain.servers.program prefect uvicorn --port 4200

The servers would create their databases themselves, and leave a part of one if they are killed
meanwhile. In the server's own process, the tool is imported only once.
"""

import gc
import os
import runpy
import signal
import subprocess
import sys
import zoneinfo
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from threading import Thread
from time import sleep

import psutil

from retrain import databases, tracking
from retrain.project import find_project
from retrain.runs import lost
from retrain.servers.reachable import request

# In the environment of a service of `make up`, and of all that it starts: `<.retrain>:<name>`. A
# flow run has a session of its own and outlives its worker; by this variable it is found.
MARK = "RETRAIN_SERVICE"

POOL = "local"
STOP_SECONDS = 5.0
GARBAGE_OBJECTS = 50_000  # that many new ones, and garbage is looked for
YOUNG_COLLECTIONS = 10  # between two that look at all objects, too


def main() -> None:
    """Prepares the server that the first argument names, and runs the module that follows."""
    gc.set_threshold(50_000)  # a sixth of the time of its start goes into looking for garbage
    _, name, *command = sys.argv
    if mark := os.environ.get(MARK):
        end_processes(mark)  # of the service as it was before it died
    if name == "mlflow":
        tracking.client(find_project())
    elif name == "worker":
        _end_runs_of_dead_worker()
    else:
        # Before Prefect is imported, which lists them for each schedule that it reads or writes:
        # 20 ms to walk through a folder.
        zoneinfo.available_timezones = cache(zoneinfo.available_timezones)
        create_prefect_database()
        collect_garbage_apart()
    if name == "ephemeral":  # from now on: a database is made to its end
        Thread(target=_end_with_input, daemon=True).start()
    sys.argv[:] = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def end_processes(mark: str) -> None:
    """Ends all processes whose environment's mark begins in a certain way, except this one."""
    processes = [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(MARK, "").startswith(mark)
        and process.pid != os.getpid()
    ]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=STOP_SECONDS)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=STOP_SECONDS)


def collect_garbage_apart() -> None:
    """Has a thread of its own look for garbage, and no other thread of this process.

    The Prefect server has one thread for its event loop and one for each connection to its SQLite
    database. To free a cursor is to wait for its connection, and that may be waiting for the lock
    on the database. If the event loop finds such a cursor, the owner of the lock, which needs the
    loop, waits, too: the server stood still for 60 s, a few times in 200 deployments.
    """
    gc.disable()
    Thread(target=_collect_garbage, daemon=True).start()


def create_prefect_database() -> None:
    """Creates the SQLite database that Prefect's settings name; another kind is left to Prefect."""
    from prefect.settings import get_current_settings
    from sqlalchemy.engine import make_url

    setting = get_current_settings().server.database.connection_url
    url = make_url(setting.get_secret_value()) if setting else None
    if url and url.get_backend_name() == "sqlite" and url.database and not url.query:
        with databases.created(Path(url.database), _migrate):
            pass


def _migrate(path: Path) -> None:
    url = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{path}"}
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
    subprocess.run(command, env=os.environ | url, check=True, stdout=subprocess.DEVNULL)


def _collect_garbage() -> None:
    """Looks for garbage, as often as Python would, until the process ends."""
    for number in count(1):
        while gc.get_count()[0] < GARBAGE_OBJECTS:
            sleep(0.5)
        gc.collect(2 if number % YOUNG_COLLECTIONS == 0 else 1)


def _end_runs_of_dead_worker() -> None:
    """Waits for the Prefect server, and marks runs as crashed that an earlier worker has left.

    Otherwise they would count as running forever, and block the next run of their deployment.
    """
    while request(f"{os.environ['PREFECT_API_URL']}/health")[0] != 200:
        sleep(0.5)
    lost.mark_crashed("Its worker was stopped while it ran.", pool=POOL)


def _end_with_input() -> None:
    """Ends this process when its standard input is closed.

    The process that started it keeps the other end of a pipe. The system closes the pipe when that
    process ends, also when it is killed, so the server never runs on alone.
    """
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    sleep(STOP_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
