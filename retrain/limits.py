"""Enforces a step's time limit, also for a step that hangs.

Prefect raises an error in the step when its time is up. Code that waits in a C library or for
another thread may not receive it. Then the whole process is ended: a run that hangs would block
all later runs of its deployment.
"""

import faulthandler
import os
import sys
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Thread, Timer
from uuid import UUID

from retrain.runs import console

GRACE_SECONDS = 60.0  # for the step to clean up after it was interrupted
REPORT_SECONDS = 20.0


def timeout_message(step: str, hours: float) -> str:
    """The message for a step that has exceeded its limit."""
    return f"{step} did not end within {hours:g} h (limits.{step})."


@contextmanager
def ends_process(step: str, hours: float, run: str, workload: str) -> Iterator[None]:
    """Ends this process, with exit code 1, if the block has not ended soon after its limit.

    If Prefect interrupts the block, the process still has to end in that time: one of its threads
    may hang.

    Args:
        step: The name of the step that the block runs.
        hours: Its limit.
        run: The id of the flow run, which is marked as crashed.
        workload: The workload's name.
    """
    seconds = 3600 * hours + GRACE_SECONDS
    # In the context of the run, so that Prefect assigns the message to it.
    timer = Timer(seconds, copy_context().run, (_end, timeout_message(step, hours), run, workload))
    timer.daemon = True
    timer.start()
    # For a library that hangs and also blocks the timer's thread.
    last = seconds + GRACE_SECONDS + REPORT_SECONDS
    faulthandler.dump_traceback_later(last, exit=True, file=sys.__stderr__ or sys.stderr)
    interrupted = False
    try:
        yield
    except CancelledError:  # Prefect's way to interrupt
        interrupted = True
        raise
    finally:
        if not interrupted:
            timer.cancel()
            faulthandler.cancel_dump_traceback_later()


def _end(message: str, run: str, workload: str) -> None:
    console.say(message)
    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)  # where it hangs
    report = Thread(target=_report, args=(message, run, workload), daemon=True)
    report.start()
    report.join(REPORT_SECONDS)
    os._exit(1)


def _report(message: str, run: str, workload: str) -> None:
    """Marks the run as crashed, unless Prefect has already recorded its end."""
    from prefect.client.orchestration import get_client
    from prefect.states import Crashed

    from retrain.runs.notify import notify

    with suppress(Exception), get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run)).state
        if state is None or not state.is_final():
            notify("failed", f"{workload}: the run crashed. {message} (run {run})")
            client.set_flow_run_state(UUID(run), Crashed(message=message), force=True)
