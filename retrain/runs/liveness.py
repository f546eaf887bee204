"""Which runs go on, and which were killed: known by a lock that the process of a run holds.

The lock's file is in the store, and its name is a tag of the process's runs in Prefect. The system
releases the lock when the process ends in any way; so whoever gets it knows that the process is
dead. Process numbers would not do: they are reused, and mean nothing in another container.

The run of a deployment that was killed is run again, by a new flow run with the same parameters. It
cannot be the same flow run: Prefect's worker calls the hooks of a run that it finds killed, and
then marks it as crashed once more, even if a hook has scheduled it. The key of the new one says
which try it is; Prefect makes one flow run for a key, however many processes see that a run is
dead.
"""

import logging
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from retrain.locks import holder_of, locked
from retrain.project import Project, find_project
from retrain.runs import console
from retrain.runs.notifications import notify_of_end

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.objects import FlowRun, State

LOCKS = ".holds"  # the folder in a store
PROCESS = f"process-{secrets.token_hex(8)}"  # the name of this process, which no other one has
# A tag of the runs on the clone's own Prefect server, which may have runs of other people, too.
OWN_SERVER = "retrain"
ENDED = "Its process was ended from outside."
OUT_OF_MEMORY = "Its process was ended, probably by the kernel, because memory was out."
LAST = "It was its third try, and there is no other."

TRIES = 3  # of a deployment's run: it is run again at most twice
TRY = re.compile(r"try-(\d+)-of-(.+)")  # a tag; the last part is the id of the first flow run
ONCE = ("rollback",)  # the flows that would do more the second time
# What Prefect says of a process that was ended by a signal: its worker, and the process itself.
SIGNAL = re.compile(r"status code: (-\d+|137|143)\b|termination signal")
UNFINISHED = ("PENDING", "RUNNING", "CANCELLING")
KILLS = "memory-kills"  # in the temporary files of a process
BOOT, VMSTAT = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/vmstat")

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

    def note_memory_kills(self) -> None:
        """Notes how many processes the kernel has killed, for `memory_was_out`."""
        (self.temporary() / KILLS).write_text(_memory_kills(), encoding="utf-8")

    def memory_was_out(self, names: Collection[str]) -> bool:
        """Whether the kernel of this machine has killed for memory since a process began."""
        now = _memory_kills().split()
        for name in names:
            with suppress(FileNotFoundError):
                noted = self.store / LOCKS / f"{name}.files" / KILLS
                then = noted.read_text(encoding="utf-8").split()
                if now[:1] == then[:1] and now != then:
                    return True
        return False

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


def _memory_kills() -> str:
    """The start of this machine, and how many processes were killed since, as memory was out."""
    with suppress(OSError):  # another system
        kills = re.findall(r"^oom_kill \d+$", VMSTAT.read_text(encoding="utf-8"), re.MULTILINE)
        return " ".join([BOOT.read_text(encoding="utf-8").strip(), *kills])
    return ""


def end_lost_runs(project: Project) -> None:
    """Ends runs in Prefect whose process was killed; called in a flow run, and by a worker.

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
                processes.note_memory_kills()
            # Another clone with the same store may have forgotten the process of such a run.
            begun = client.read_flow_runs(
                flow_run_filter=runs_in(UNFINISHED, tags={"any_": [OWN_SERVER, *killed]})
            )
            # Whoever has marked a run may have been killed before it was run again.
            marked = runs_in(["CRASHED"], tags={"any_": [*killed]})
            for run in client.read_flow_runs(flow_run_filter=marked) if killed else ():
                _run_again(client, run, ENDED)
        alive = processes.alive().keys()
        if lost := [str(run.id) for run in begun if alive.isdisjoint(run.tags)]:
            end_runs(project, lost)
    except Exception as error:  # must not keep this run from its work
        logger.warning("The runs that were killed could not be ended: %s", error)
        return
    processes.forget(killed)


def run_crashed_again(pool: str, seconds: float) -> None:
    """Has runs of deployments run again that were killed as they began.

    Prefect's worker loads the flow to call `notify_of_crash`, and finds none if the process was
    killed before it had said where its flow is. Of runs for which it was called, nothing changes.

    Args:
        pool: The work pool.
        seconds: For how long a run has been crashed, so that the worker has called its hooks.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import WorkPoolFilter

    now = datetime.now(UTC)
    ended = {"before_": now - timedelta(seconds=seconds), "after_": now - timedelta(days=1)}
    try:
        with get_client(sync_client=True) as client:
            crashed = client.read_flow_runs(
                flow_run_filter=runs_in(["CRASHED"], end_time=ended),
                work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": [pool]}}),
            )
            for run in crashed:
                signal = SIGNAL.search((run.state and run.state.message) or "")
                if signal and signal[1]:
                    _run_again(client, run, ENDED)
    except Exception as error:  # the next look does it
        logger.warning("The runs that have crashed could not be read: %s", error)


def runs_in(states: Collection[str], **more: Any) -> "FlowRunFilter":
    """The flow runs that Prefect has in certain types of states."""
    from prefect.client.schemas.filters import FlowRunFilter

    return FlowRunFilter.model_validate({"state": {"type": {"any_": [*states]}}, **more})


def end_runs(project: Project, runs: Collection[str]) -> None:
    """Marks flow runs as crashed that go on according to Prefect, but whose processes are dead.

    A run of a deployment is run again; people are notified of the others. What a person was
    cancelling is cancelled.

    Args:
        project: The clone.
        runs: The ids of the flow runs.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.responses import SetStateStatus
    from prefect.states import Cancelled

    unfinished = runs_in(UNFINISHED, id={"any_": sorted(runs)})
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=unfinished):
            if run.state and run.state.is_cancelling():
                client.set_flow_run_state(run.id, Cancelled(message=ENDED), force=True)
                continue
            crashed = _crashed(project, run)
            # First, so that whoever is killed meanwhile leaves a run that the next one finds.
            again = _run_again(client, run, str(crashed.message))
            _end_tasks(client, run, crashed)
            found = client.set_flow_run_state(run.id, crashed)
            console.say(f"Run {str(run.id)[:8]} is marked as crashed: its process was ended.")
            # Prefect refuses a second end, of which somebody else has notified people.
            if not again and found.status is SetStateStatus.ACCEPT:
                notify_of_end(None, run, crashed)


def notify_of_crash(flow: object, flow_run: "FlowRun", state: "State[Any]") -> None:
    """A hook of a flow, for a run that has crashed: it is run again, or people are notified.

    The worker of Prefect calls it when it sees that the process of a run was killed; the process
    itself calls it when it is asked to end.
    """
    from prefect.client.orchestration import get_client

    if flow_run.deployment_id and (signal := SIGNAL.search(state.message or "")):
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(flow_run.id)
            if signal[1]:  # the process has said nothing
                state = _crashed(find_project(), run)
                _end_tasks(client, run, state)
                client.set_flow_run_state(run.id, state, force=True)
            if _run_again(client, run, str(state.message)):
                return
    notify_of_end(flow, flow_run, state)


def _crashed(project: Project, run: "FlowRun") -> "State[Any]":
    """The state of a run whose process was killed."""
    from prefect.states import Crashed

    number, _ = _try_of(run)
    memory_was_out = Processes(project.store).memory_was_out(run.tags)
    message = OUT_OF_MEMORY if memory_was_out else ENDED
    return Crashed(message=f"{message} {LAST}" if number == TRIES else message)


def _end_tasks(client: "SyncPrefectClient", run: "FlowRun", state: "State[Any]") -> None:
    """Gives the tasks of a flow run that go on according to Prefect their final state."""
    from prefect.client.schemas.filters import FlowRunFilter

    its_tasks = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
    for task in client.read_task_runs(flow_run_filter=its_tasks):
        if task.state and not task.state.is_final():
            client.set_task_run_state(task.id, state, force=True)


def _try_of(run: "FlowRun") -> tuple[int, str]:
    """Which try of a run a flow run is, and the id of the first."""
    tries = [match.groups() for match in map(TRY.fullmatch, run.tags) if match]
    return (int(tries[0][0]), tries[0][1]) if tries else (1, str(run.id))


def _run_again(client: "SyncPrefectClient", run: "FlowRun", message: str) -> bool:
    """Has a deployment's run whose process was killed run again, with the same parameters.

    Returns:
        Whether it will run; it will not if it was run again twice, or Prefect refuses it.
    """
    from prefect.states import AwaitingRetry

    number, first = _try_of(run)
    if run.deployment_id is None or number >= TRIES:
        return False
    tag = f"try-{number + 1}-of-{first}"
    kept = [each for each in run.tags if not each.startswith(("process-", "try-"))]
    try:
        if client.read_flow(run.flow_id).name in ONCE:
            return False
        made = client.create_flow_run_from_deployment(
            run.deployment_id,
            parameters=run.parameters,
            state=AwaitingRetry(message=f"Goes on from run {run.id}. {message}"),
            tags=[*kept, tag],
            idempotency_key=tag,
            job_variables=run.job_variables,
        )
    except Exception as error:  # such as a deployment that was removed
        logger.warning("Run %s could not be run again: %s", run.id, error)
        return False
    if made.state and made.state.is_scheduled():  # else it was made before
        console.say(f"Run {str(run.id)[:8]} is run again, as run {str(made.id)[:8]}.")
    return bool(made.state and not made.state.is_final())
