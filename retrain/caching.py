"""A step as a Prefect task: retried where another try can help, and `Cached` if it did not run.

Prefect keeps no record of its own: its files name the serializer that they are to be read with,
pickle among them, and a store that others can write to must not decide what is run here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.task_engine import TaskRunTimeoutError
from prefect.tasks import exponential_backoff

from retrain.errors import DamagedArtifactError, is_verdict
from retrain.execute import Checking, get_or_run, run_uncached
from retrain.limits import ends_process
from retrain.step import Input, Plan, Step
from retrain.store import Artifact, RunContext, Store
from retrain.workload import Workload

CACHED = "Cached"  # what Prefect calls the state of a task that did not have to run
RETRIES = 2
BACKOFF_SECONDS = 2.0

# Raised when something outside is away for a while: a network, a worker, a locked database.
_PASSING_MODULES = ("botocore", "dvc", "mlflow", "ray", "requests", "sqlalchemy", "urllib3")


def as_task(
    step: Step, store: Store, checking: Checking, hours: float
) -> Task[..., State[Artifact]]:
    """The Prefect task of a step.

    It takes `plan`, `workload`, `inputs`, `context` and `refresh`, and returns a state whose data
    is the step's output; its name is `Cached` when the store had that. A step that is cached leaves
    its artifact in the store.

    Args:
        step: Which step.
        store: Where its output goes.
        checking: Checks the inputs of a step that runs.
        hours: How long each of its tries may take.
    """

    def run(
        plan: Plan, workload: Workload, inputs: Sequence[Input], context: RunContext, refresh: bool
    ) -> State[Artifact]:
        with ends_process(step.name, hours, context.run, workload.name):
            if not step.cached:
                made = run_uncached(step, plan, workload, inputs, context, checking)
                return Completed(data=made)
            made, was_there = get_or_run(
                store, step, plan, workload, inputs, context, checking, refresh=refresh
            )
        return Completed(data=made, name=CACHED) if was_there else Completed(data=made)

    return Task(
        run,
        name=step.name,
        task_run_name=step.name,
        timeout_seconds=3600 * hours,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(BACKOFF_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_is_transient,
        cache_policy=NO_CACHE,
        persist_result=False,  # whatever the user's settings say
    )


def is_transient(error: BaseException) -> bool:
    """Whether another try can help: never after a verdict, or one that took all of its time."""
    chain = list(_causes(error))
    if any(is_verdict(each) or _is_final(each) for each in chain):
        return False
    return any(
        isinstance(each, OSError) or type(each).__module__.split(".")[0] in _PASSING_MODULES
        for each in chain
    )


def _is_final(error: BaseException) -> bool:
    """Whether another try of this step is of no use.

    Its time is over; or its input is damaged, and has to be made again first; or Ray Train has
    replaced lost workers itself, as often as it may.
    """
    if isinstance(error, TaskRunTimeoutError | DamagedArtifactError):
        return True
    # Ray raises a class that it has derived from its own.
    return any(each.__module__.startswith("ray.train.") for each in type(error).__mro__)


def _is_transient(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    return isinstance(error, BaseException) and is_transient(error)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and all that it says it comes from; Ray Train's holds those of its workers."""
    yield error
    workers = getattr(error, "worker_failures", None)
    inner = list(workers.values()) if isinstance(workers, dict) else []
    for each in [error.__cause__, getattr(error, "cause", None), *inner]:
        if isinstance(each, BaseException) and each is not error:
            yield from _causes(each)
