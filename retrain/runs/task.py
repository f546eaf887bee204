"""The Prefect task of a step: retried where a retry can help, and ended after its time limit.

Prefect does not persist results here: its files name the serializer to read them with, which may
be pickle, and a store that others can write to must not decide what code runs here.
"""

import faulthandler
import logging
import sys
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.states import Completed
from prefect.task_engine import TaskRunTimeoutError
from prefect.tasks import exponential_backoff
from rich.markup import escape

from retrain.errors import DamagedArtifactError, StepTimeoutError, is_verdict
from retrain.messages import lacks_space, message_of
from retrain.runs import console
from retrain.servers.patches import let_forks_end

Made = TypeVar("Made")

let_forks_end()
# Each step has a line of its own, by `console.say_step`.
logging.getLogger("prefect.task_runs").addFilter(
    lambda record: record.levelno > logging.INFO or "Finished in state" not in record.getMessage()
)

CACHED = "Cached"  # what Prefect calls the state of a task that did not have to run
# After errors that may pass: of what is elsewhere, for two minutes, in which a server is started
# again; of this machine, such as of its disk, for seconds.
RETRIES, RETRIES_HERE = 6, 2
BACKOFF_SECONDS = 2.0
GRACE_SECONDS = 60.0  # for a step to clean up after it was interrupted

# Raised when something outside is unavailable for a while: a network, a worker, a locked database.
_TRANSIENT_MODULES = ("botocore", "dvc", "mlflow", "ray", "requests", "sqlalchemy", "urllib3")


def in_task(step: str, hours: float, attempt: Callable[[], tuple[Made, bool]]) -> tuple[Made, bool]:
    """Makes something in a Prefect task, or without one outside of a flow run, as DVC does.

    Args:
        step: The name of the step, and of the task.
        hours: The time limit of each try.
        attempt: Returns what is made, and whether it was cached.

    Returns:
        What the attempt returns.

    Raises:
        StepTimeoutError: A try did not end within the limit.
        ConnectionError: The run has lost its slot of a deployment's concurrency limit.
    """
    if FlowRunContext.get() is None:
        with ends_process(hours):
            return attempt()
    began = 0.0

    def one_try() -> State[tuple[Made, bool]]:
        nonlocal began
        began = monotonic()
        with ends_process(hours):
            made, cached = attempt()
        return Completed(data=(made, cached), name=CACHED if cached else None)

    task = Task(
        one_try,
        name=step,
        task_run_name=step,
        timeout_seconds=3600 * hours,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(BACKOFF_SECONDS),
        retry_jitter_factor=0.5,
        retry_condition_fn=_is_transient,
        cache_policy=NO_CACHE,
        persist_result=False,  # also if the user's settings ask for it
    )
    try:
        return task().result()
    except TaskRunTimeoutError:
        if monotonic() - began >= 3600 * hours:
            raise StepTimeoutError(step, hours) from None
        # Prefect raises the same where a run has lost its slot.
        raise ConnectionError(
            f"{step} was ended, because Prefect's server was out of reach for minutes and has "
            "given the run's slot away; it goes on where it was: start the run again."
        ) from None


@contextmanager
def ends_process(hours: float) -> Iterator[None]:
    """Ends this process, with exit code 1, if the block has not ended soon after its limit.

    Prefect raises an error in a step when its time is up, which code that waits in a C library or
    for another thread may not receive; and a run that hangs would block all later runs of its
    deployment. The stacks of all threads go to standard error. If Prefect interrupts the block, the
    process still has to end in that time: one of its threads may hang.

    Args:
        hours: The limit.
    """
    seconds = 3600 * hours + GRACE_SECONDS
    # By a thread of its own that is not one of Python's, which a library may block.
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    is_interrupted = False
    try:
        yield
    except CancelledError:  # Prefect's way to interrupt
        is_interrupted = True
        raise
    finally:
        if not is_interrupted:
            faulthandler.cancel_dump_traceback_later()


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
