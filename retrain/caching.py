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
from prefect.tasks import exponential_backoff

from retrain.errors import DamagedArtifactError
from retrain.execute import Checking, get_or_run, run_uncached
from retrain.step import Input, Plan, Step
from retrain.store import Artifact, RunContext, Store
from retrain.workload import Workload

CACHED = "Cached"  # what Prefect calls the state of a task that did not have to run
RETRIES = 2
BACKOFF_SECONDS = 2.0

# Raised when something outside is away for a while: a network, a worker, a locked database.
_PASSING_MODULES = ("botocore", "dvc", "mlflow", "ray", "requests", "sqlalchemy", "urllib3")


def as_task(step: Step, store: Store, checking: Checking) -> Task[..., State[Artifact]]:
    """The Prefect task of a step.

    It takes `plan`, `workload`, `inputs`, `context` and `refresh`, and returns a state whose data
    is the step's output; its name is `Cached` when the store had that. A step that is cached leaves
    its artifact in the store.
    """

    def run(
        plan: Plan, workload: Workload, inputs: Sequence[Input], context: RunContext, refresh: bool
    ) -> State[Artifact]:
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
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(BACKOFF_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_is_transient,
        cache_policy=NO_CACHE,
        persist_result=False,  # whatever the user's settings say
    )


def is_transient(error: BaseException) -> bool:
    """Whether another try can help: never after a verdict on data, config or a model."""
    chain = list(_causes(error))
    hopeless = (ValueError, AssertionError, TypeError, DamagedArtifactError)
    if any(isinstance(each, hopeless) for each in chain):
        return False
    return any(
        isinstance(each, OSError) or type(each).__module__.split(".")[0] in _PASSING_MODULES
        for each in chain
    )


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
