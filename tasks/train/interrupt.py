"""Ends a training at Ctrl-C after its step, with a checkpoint from which the next run goes on.

The process of the step leaves a file in the scratch folder, which all workers see; the loop looks
for it after its steps.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from threading import Thread, current_thread, main_thread

from retrain.runs import console
from tasks.train import checkpoint

FILE = "stop"


def is_asked(scratch: Path) -> bool:
    """Whether a loop should write a checkpoint now and end.

    Args:
        scratch: Of the training.
    """
    return (scratch / FILE).exists()


@contextmanager
def asking_at_ctrl_c(scratch: Path, *, listens: bool) -> Iterator[None]:
    """Asks the loop to end at the first Ctrl-C, and ends it at once at the second one.

    Args:
        scratch: Of the training.
        listens: Whether the loop looks for it; without, the first Ctrl-C ends it at once.

    Raises:
        KeyboardInterrupt: After the block, or in it.
    """
    asked = scratch / FILE
    asked.unlink(missing_ok=True)
    if current_thread() is not main_thread():  # which alone gets signals
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        asked.touch()
        line = "train ends after this step, with a checkpoint. Ctrl-C again ends it at once."
        # A thread, because what this one was doing may hold a lock of the screen.
        Thread(target=copy_context().run, args=(console.say, line)).start()

    if listens:
        signal.signal(signal.SIGINT, ask)
    try:
        yield
    except KeyboardInterrupt:
        console.say(
            "train ended at once. The same command goes on from its last checkpoint, if it has one."
        )
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    if asked.exists():
        step = checkpoint.newest(scratch)
        console.say(f"train ended at step {step}. The same command goes on from there.")
        raise KeyboardInterrupt
