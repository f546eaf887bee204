"""Which runs go on, and which were killed: known by a lock that the process of a run holds.

The lock's file is in the store, and its name is a tag of the process's runs in Prefect. The system
releases the lock when the process ends in any way; so whoever gets it knows that the process is
dead. Process numbers would not do: they are reused, and mean nothing in another container.
"""

import logging
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from retrain.locks import holder_of, locked
from retrain.project import Project
from retrain.runs import console
from retrain.runs.notifications import notify_of_end

if TYPE_CHECKING:
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import State

LOCKS = ".holds"  # the folder in a store
PROCESS = f"process-{secrets.token_hex(8)}"  # the name of this process, which no other one has
# A tag of the runs on the clone's own Prefect server, which may have runs of other people, too.
OWN_SERVER = "retrain"
ENDED = "Its process was ended from outside."

logger = logging.getLogger("retrain")


@dataclass(frozen=True)
class Processes:
    """The processes that run something with a store.

    Attributes:
        store: The folder of the store.
    """

    store: Path

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Says that this process is alive, and protects what it uses from `retrain gc`.

        Such blocks may lie in each other, and in several threads of the process.
        """
        file = self._own
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file, reentrant=True) as lock:
            try:
                yield
            finally:
                if lock.lock_counter == 1:
                    self._remove(file)

    def temporary(self) -> Path:
        """A folder for temporary files, which goes when this process holds its lock no more."""
        folder = self._own.with_suffix(".files")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def alive(self) -> dict[str, str]:
        """The processes that are alive, by their names: each in words, with its command."""
        dead = {*self._dead()}
        return {lock.stem: _words(lock) for lock in self._locks() if lock not in dead}

    def killed(self) -> dict[str, str]:
        """The processes that were killed, until they are forgotten, as `alive` has them."""
        return {lock.stem: _words(lock) for lock in self._dead()}

    def forget(self, killed: Collection[str]) -> None:
        """Removes what killed processes have left, except the scratch of their steps."""
        for lock in self._dead():
            if lock.stem in killed:
                self._remove(lock)

    def oldest(self) -> float:
        """When the oldest process began that is alive, or was killed and is not forgotten.

        Returns:
            Seconds since the epoch; now if there is none.
        """
        began = [time()]
        for lock in self._locks():
            with suppress(FileNotFoundError):  # it has ended
                began.append(lock.stat().st_mtime)
        return min(began)

    @property
    def _own(self) -> Path:
        return self.store / LOCKS / f"{PROCESS}.lock"

    def _locks(self) -> list[Path]:
        return sorted(self.store.glob(f"{LOCKS}/*.lock"))

    def _dead(self) -> Iterator[Path]:
        """The locks of killed processes; each is held until the next is asked for."""
        from filelock import Timeout

        for lock in self._locks():
            with suppress(Timeout), locked(lock, wait=False, sign=False):
                yield lock

    def _remove(self, lock: Path) -> None:
        """Removes the files of a process that has ended; the caller has its lock."""
        shutil.rmtree(lock.with_suffix(".files"), ignore_errors=True)
        lock.unlink(missing_ok=True)


def _words(lock: Path) -> str:
    return holder_of(lock).replace(" has it since ", ", since ")


def end_lost_runs(project: Project) -> None:
    """Marks runs as crashed in Prefect, if their process was killed; called in a flow run.

    Only runs of this clone are known. If the server does not answer, the next call tries it again.
    """
    from prefect import runtime
    from prefect.client.orchestration import get_client

    processes, this = Processes(project.store), runtime.flow_run
    killed = processes.killed()
    try:
        with get_client(sync_client=True) as client:
            if this.id and PROCESS not in this.tags:  # a worker has made it
                client.update_flow_run(this.id, tags=[*this.tags, PROCESS])
            # Another clone with the same store may have forgotten the process of such a run.
            begun = client.read_flow_runs(
                flow_run_filter=unfinished(tags={"any_": [OWN_SERVER, *killed]})
            )
        alive = processes.alive().keys()
        if lost := [str(run.id) for run in begun if alive.isdisjoint(run.tags)]:
            mark_crashed(ENDED, lost)
    except Exception as error:  # must not keep this run from its work
        logger.warning("The runs that were killed could not be ended: %s", error)
        return
    processes.forget(killed)


def unfinished(**more: Any) -> "FlowRunFilter":
    """The flow runs that go on according to Prefect."""
    from prefect.client.schemas.filters import FlowRunFilter

    states = {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}
    return FlowRunFilter.model_validate({"state": states, **more})


def mark_crashed(message: str, runs: Collection[str]) -> None:
    """Marks flow runs that go on according to Prefect, and their tasks, as crashed; tells people.

    Args:
        message: The message of the state `Crashed`.
        runs: The ids of the flow runs.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.states import Crashed

    crashed: State[Any] = Crashed(message=message)
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=unfinished(id={"any_": sorted(runs)})):
            its_tasks = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
            for task in client.read_task_runs(flow_run_filter=its_tasks):
                if task.state and not task.state.is_final():
                    client.set_task_run_state(task.id, crashed, force=True)
            client.set_flow_run_state(run.id, crashed, force=True)
            console.say(f"Run {str(run.id)[:8]} is marked as crashed: its process was ended.")
            notify_of_end(None, run, crashed)
