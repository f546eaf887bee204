"""A step as a Prefect task: cached by its key, retried where another try can help.

Prefect's record of the task is kept in the artifact's own folder, `<step>/<key>/result.json`:
without the folder there is no hit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE, CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.task_engine import TaskRunTimeoutError
from prefect.tasks import exponential_backoff

from retrain.errors import is_verdict
from retrain.limits import ends_process
from retrain.step import Input, Plan, Step
from retrain.store import RESULT, RunContext, Store, make, record
from retrain.workload import Workload

RETRIES = 2
BACKOFF_SECONDS = 2.0

# Raised when something outside is away for a while: a network, a worker, a locked database.
_PASSING_MODULES = ("botocore", "dvc", "mlflow", "ray", "requests", "sqlalchemy", "urllib3")


@dataclass
class ByKey(CachePolicy):
    """The key of the step's plan, as a path in the store."""

    def compute_key(
        self,
        task_ctx: Any,
        inputs: dict[str, Any],
        flow_parameters: dict[str, Any],
        **kwargs: Any,
    ) -> str | None:
        """Says where Prefect keeps the task's record."""
        plan: Plan = inputs["plan"]
        return f"{plan.step}/{plan.key}/{RESULT}"


def as_task(step: Step, store: Store, hours: float) -> Task[..., Any]:
    """The Prefect task of a step.

    It takes `plan`, `workload`, `inputs`, `context` and `refresh`, and returns the step's record as
    JSON-able values. A step that is cached leaves its artifact in the store.

    Args:
        step: Which step.
        store: Where its output goes.
        hours: How long each of its tries may take.
    """

    def run(
        plan: Plan, workload: Workload, inputs: Sequence[Input], context: RunContext, refresh: bool
    ) -> dict[str, Any]:
        with ends_process(step.name, hours, context.run, workload.name):
            if not step.cached:
                return record(step, plan, workload, inputs, context)
            made = make(store, step, plan, workload, inputs, context, refresh=refresh)
        return {"step": made.step, "key": made.key, "digest": made.digest}

    return Task(
        run,
        name=step.name,
        task_run_name=step.name,
        timeout_seconds=3600 * hours,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(BACKOFF_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_is_transient,
        cache_policy=ByKey() if step.cached else NO_CACHE,
        persist_result=step.cached,
        result_storage=store.root if step.cached else None,
        result_serializer="json" if step.cached else None,
    )


def is_transient(error: BaseException) -> bool:
    """Whether another try can help: never after a verdict, or one that took all of its time."""
    chain = list(_causes(error))
    if any(is_verdict(each) or _is_last(each) for each in chain):
        return False
    return any(
        isinstance(each, OSError) or type(each).__module__.split(".")[0] in _PASSING_MODULES
        for each in chain
    )


def _is_last(error: BaseException) -> bool:
    """Whether all tries, or their time, are over: Ray Train replaces lost workers itself."""
    if isinstance(error, TaskRunTimeoutError):
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
