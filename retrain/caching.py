"""Makes a Prefect task of a step: retried where a retry can help, `Cached` if it did not run.

Prefect does not persist results here: its files name the serializer to read them with, which may
be pickle, and a store that others can write to must not decide what code runs here.
"""

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.task_engine import TaskRunTimeoutError
from prefect.tasks import exponential_backoff
from rich.markup import escape

from retrain.errors import DamagedArtifactError, PrunedError, StepTimeoutError, is_verdict
from retrain.limits import ends_process
from retrain.messages import lacks_space, message_of
from retrain.runs import console
from retrain.servers.patches import let_forks_end
from retrain.step import Step
from retrain.store import Artifact, RunContext
from retrain.workload import Workload

let_forks_end()

CACHED = "Cached"  # what Prefect calls the state of a task that did not have to run
PRUNED = "Pruned"  # what Prefect calls the state of a trial that was ended early
# After errors that may pass: of what is elsewhere, for two minutes, in which a server is started
# again; of this machine, such as of its disk, for seconds.
RETRIES, RETRIES_HERE = 6, 2
BACKOFF_SECONDS = 2.0

# Raised when something outside is unavailable for a while: a network, a worker, a locked database.
_TRANSIENT_MODULES = ("botocore", "dvc", "mlflow", "ray", "requests", "sqlalchemy", "urllib3")


def run_as_task(
    step: Step, work: Callable[[], tuple[Artifact, bool]], workload: Workload, context: RunContext
) -> tuple[Artifact, bool]:
    """Runs a step, or takes its output from the store, in a Prefect task.

    The task's state is `Cached` if the store had the output, and `Pruned` for a trial that was
    ended early.

    Args:
        step: The step to run.
        work: Returns the step's output, and whether the store had it.
        workload: The workload, which may have a time limit for each try of the step.
        context: The run that the task belongs to.

    Raises:
        PrunedError: The step is the trial of a search, and was ended early.
        StepTimeoutError: The step did not end within its limit.
        ConnectionError: The run has lost its slot of a deployment's concurrency limit.
        ValueError: From the step.
    """
    hours, trial = step.limit(workload), context.trial
    began = monotonic()

    def run() -> State[tuple[Artifact, bool] | PrunedError]:
        nonlocal began
        began = monotonic()  # each try has the limit
        with ends_process(hours):
            try:
                result = work()
            except PrunedError as pruned:
                return Completed(data=pruned, name=PRUNED)
        return Completed(data=result, name=CACHED if result[1] else None)

    task = Task(
        run,
        name=step.name,
        task_run_name=f"{step.name}, {trial.name}" if trial else step.name,
        timeout_seconds=3600 * hours,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(BACKOFF_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_is_transient,
        cache_policy=NO_CACHE,
        persist_result=False,  # also if the user's settings ask for it
    )
    try:
        result = task().result()
    except TaskRunTimeoutError:
        if monotonic() - began < 3600 * hours:  # Prefect raises the same for another reason, too
            raise ConnectionError(
                f"{step.name} was ended, because Prefect's server was out of reach for minutes and "
                "has given the run's slot away; it goes on where it was: start the run again."
            ) from None
        raise StepTimeoutError(
            f"{step.name} did not end within {hours:g} h (limits.{step.name})."
        ) from None
    if isinstance(result, PrunedError):
        raise result
    return result


def is_transient(error: BaseException) -> bool:
    """Whether a retry can help: never after an error about the input or the code, or a timeout."""
    chain = list(_causes(error))
    if any(is_verdict(cause) or _is_final(cause) for cause in chain):
        return False
    return any(isinstance(cause, OSError) or _is_elsewhere(cause) for cause in chain)


def _is_elsewhere(error: BaseException) -> bool:
    """Whether an error comes from a server, a network, or another machine."""
    module = type(error).__module__.split(".")[0]
    return isinstance(error, ConnectionError | TimeoutError) or module in _TRANSIENT_MODULES


def _is_final(error: BaseException) -> bool:
    """Whether a retry of this step cannot help.

    That is so if the time limit is over, if an input is damaged and must be made again first, or
    if Ray Train has already replaced lost workers as often as it may.
    """
    if isinstance(error, TaskRunTimeoutError | DamagedArtifactError):
        return True
    # Ray raises a subclass that it derives at run time.
    return any(kind.__module__.startswith("ray.train.") for kind in type(error).__mro__)


def _is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    if not isinstance(error, BaseException) or not is_transient(error):
        return False
    is_elsewhere = any(map(_is_elsewhere, _causes(error))) and not lacks_space(error)
    retries = RETRIES if is_elsewhere else RETRIES_HERE
    if task_run.run_count > retries:
        return False
    reason = message_of(error).splitlines()[0]
    console.say(escape(f"{task.name} is tried again: {reason}"))
    return True


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all its causes; an error of Ray Train holds those of its workers."""
    yield error
    workers = getattr(error, "worker_failures", None)
    inner = list(workers.values()) if isinstance(workers, dict) else []
    for cause in [error.__cause__, getattr(error, "cause", None), *inner]:
        if isinstance(cause, BaseException) and cause is not error:
            yield from _causes(cause)
