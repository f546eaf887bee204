"""Prepares one of the servers, then runs its module as `python -m` does.

    python -m retrain.servers.program prefect uvicorn --port 4200

The servers would create their databases themselves, and leave a part of one if they are killed
meanwhile. In the server's own process, the tool is imported only once.
"""

import gc
import os
import runpy
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import sleep

import psutil

from retrain.project import Project, find_project
from retrain.registry import tracking
from retrain.runs import liveness
from retrain.servers import databases

# In the environment of a service of `make up`, and of all that it starts: `<.retrain>:<name>`. A
# flow run has a session of its own and outlives its worker; by this variable it is found.
MARK = "RETRAIN_SERVICE"
RUN = "PREFECT__FLOW_RUN_ID"  # in the environment of the process of a flow run

DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"  # of the user's own, which Prefect makes

POOL = "local"
STOP_SECONDS = 5.0
GARBAGE_SECONDS = 30.0
# A worker sees at once that the process of a run of its own was killed. How soon it finds those of
# a machine that is gone.
LOST_SECONDS = 30.0


def main() -> None:
    """Prepares the server that the first argument names, and runs the module that follows."""
    _, name, *command = sys.argv
    if mark := os.environ.get(MARK):
        end_processes(mark)  # of the service as it was before it died
    if name == "mlflow":
        tracking.client(find_project())
    elif name == "worker":
        end_runs_of_dead_worker(command[command.index("--name") + 1])
        Thread(target=_end_lost_runs, daemon=True).start()
    else:
        if name == "ephemeral" or DATABASE not in os.environ:
            file = databases.of_prefect(Project(Path.cwd()))  # it runs in the clone's folder
            with databases.created(file, databases.create_prefect):
                pass
        # The Prefect server has one thread for its event loop and one for each connection to its
        # SQLite database. To free a cursor is to wait for its connection, and that may be waiting
        # for the lock on the database. If the event loop finds such a cursor as garbage, the owner
        # of the lock, which needs the loop, waits, too: the server stood still for 60 s.
        gc.disable()
        Thread(target=_collect_garbage, daemon=True).start()
    if name == "ephemeral":  # from now on: a database is made to its end
        Thread(target=_end_with_input, daemon=True).start()
    sys.argv[:] = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)


def end_processes(mark: str) -> None:
    """Ends all processes whose environment's mark begins in a certain way, except this one."""
    processes = [
        process
        for process, value in _processes_with(MARK)
        if value.startswith(mark) and process.pid != os.getpid()
    ]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=STOP_SECONDS)


def _processes_with(variable: str) -> Iterator[tuple[psutil.Process, str]]:
    """The processes of this machine that have a variable, each with its value."""
    for process in psutil.process_iter(["environ"]):
        if value := (process.info["environ"] or {}).get(variable):
            yield process, value


def _collect_garbage() -> None:
    while True:
        sleep(GARBAGE_SECONDS)
        gc.collect()


def end_runs_of_dead_worker(name: str) -> None:
    """Waits for the Prefect server, and ends the runs that an earlier worker has left.

    Otherwise they would count as running forever, and block the next run of their deployment. Where
    other workers serve the pool, too, nobody knows whose a run is that has not begun: Prefect frees
    its slot itself.

    Args:
        name: The name of the worker that starts.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import WorkPoolFilter

    project = find_project()
    pool = WorkPoolFilter.model_validate({"name": {"any_": [POOL]}})
    with get_client(sync_client=True) as client:
        while client.api_healthcheck():  # which returns the error
            sleep(0.5)
        liveness.end_lost_runs(project)
        unfinished = liveness.runs_in(liveness.UNFINISHED)
        runs = client.read_flow_runs(flow_run_filter=unfinished, work_pool_filter=pool)
        workers = client.read_workers_for_work_pool(POOL) if runs else []
    if not any(worker.status == "ONLINE" and worker.name != name for worker in workers):
        alive = {run for _, run in _processes_with(RUN)}
        liveness.end_runs(project, {str(run.id) for run in runs} - alive)


def _end_lost_runs() -> None:
    """Ends lost runs for as long as this worker lives."""
    project = find_project()
    while True:
        sleep(LOST_SECONDS)
        if liveness.Processes(project.store).killed():
            liveness.end_lost_runs(project)
        liveness.run_crashed_again(POOL, LOST_SECONDS)


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
