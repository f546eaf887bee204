"""Enforces a step's time limit, also for a step that hangs.

Prefect raises an error in the step when its time is up. Code that waits in a C library or for
another thread may not receive it. Then the whole process is ended: a run that hangs would block
all later runs of its deployment.
"""

import faulthandler
import sys
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager

GRACE_SECONDS = 60.0  # for the step to clean up after it was interrupted


@contextmanager
def ends_process(hours: float) -> Iterator[None]:
    """Ends this process, with exit code 1, if the block has not ended soon after its limit.

    The stacks of all threads go to standard error. If Prefect interrupts the block, the process
    still has to end in that time: one of its threads may hang.

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
