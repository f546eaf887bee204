"""Makes a Prefect task of a step: retried where a retry can help, `Cached` if it did not run.

Prefect does not persist results here: its files name the serializer to read them with, which may
be pickle, and a store that others can write to must not decide what code runs here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.task_engine import TaskRunTimeoutError
from prefect.tasks import exponential_backoff

from retrain.errors import DamagedArtifactError, PrunedError, is_verdict
from retrain.execute import Check, get_or_run, run_uncached
from retrain.limits import ends_process
from retrain.patches import let_forks_end
from retrain.step import Input, Plan, Step
from retrain.store import Artifact, RunContext, Store
from retrain.workload import Workload

let_forks_end()

CACHED = "Cached"  # what Prefect calls the state of a task that did not have to run
PRUNED = "Pruned"  # and that of a trial that was ended early
RETRIES = 2
BACKOFF_SECONDS = 2.0

# Raised when something outside is unavailable for a while: a network, a worker, a locked database.
_TRANSIENT_MODULES = ("botocore", "dvc", "mlflow", "ray", "requests", "sqlalchemy", "urllib3")


def as_task(
    step: Step, store: Store, check: Check, hours: float, trial: str | None = None
) -> "Task[..., State[Artifact | PrunedError]]":
    """The Prefect task of a step.

    It takes `plan`, `workload`, `inputs`, `context` and `refresh`, and returns a state whose data
    is the step's output; its name is `Cached` when the store had that output. A cached step leaves
    its artifact in the store. A pruned trial's state is `Pruned`, and its data the error.

    Args:
        step: Which step.
        store: Where its output goes.
        check: Checks the inputs of a step that runs.
        hours: How long each of its tries may take.
        trial: The name of the trial that it is run for.
    """

    def run(
        plan: Plan, workload: Workload, inputs: Sequence[Input], context: RunContext, refresh: bool
    ) -> State[Artifact | PrunedError]:
        with ends_process(step.name, hours, context.run, workload.name):
            if not step.cached:
                artifact = run_uncached(step, plan, workload, inputs, context, check)
                return Completed(data=artifact)
            try:
                artifact, was_cached = get_or_run(
                    store, step, plan, workload, inputs, context, check, refresh=refresh
                )
            except PrunedError as pruned:
                return Completed(data=pruned, name=PRUNED)
        if was_cached:
            return Completed(data=artifact, name=CACHED)
        return Completed(data=artifact)

    return Task(
        run,
        name=step.name,
        task_run_name=f"{step.name}, {trial}" if trial else step.name,
        timeout_seconds=3600 * hours,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(BACKOFF_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_is_transient,
        cache_policy=NO_CACHE,
        persist_result=False,  # also if the user's settings ask for it
    )


def is_transient(error: BaseException) -> bool:
    """Whether a retry can help: never after an error about the input or the code, or a timeout."""
    chain = list(_causes(error))
    if any(is_verdict(each) or _is_final(each) for each in chain):
        return False
    return any(
        isinstance(each, OSError) or type(each).__module__.split(".")[0] in _TRANSIENT_MODULES
        for each in chain
    )


def _is_final(error: BaseException) -> bool:
    """Whether a retry of this step cannot help.

    Its time is over; or its input is damaged and must be made again first; or Ray Train has
    already replaced lost workers as often as it may.
    """
    if isinstance(error, TaskRunTimeoutError | DamagedArtifactError):
        return True
    # Ray raises a subclass that it derives at run time.
    return any(each.__module__.startswith("ray.train.") for each in type(error).__mro__)


def _is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    return isinstance(error, BaseException) and is_transient(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all its causes; an error of Ray Train holds those of its workers."""
    yield error
    workers = getattr(error, "worker_failures", None)
    inner = list(workers.values()) if isinstance(workers, dict) else []
    for each in [error.__cause__, getattr(error, "cause", None), *inner]:
        if isinstance(each, BaseException) and each is not error:
            yield from _causes(each)
