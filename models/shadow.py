"""Has another version answer what a served model is asked, without returning its answers.

RETRAIN_SHADOW names it as MLflow loads it: `models:/vit@challenger`. It answers in a process of its
own, for its package may have other code, and at a low priority; there it logs its answers by itself
to the folder of RETRAIN_LOG_PREDICTIONS (`models/prediction_log.py`). A request does not wait for
it: images for which it has no room are left out.

The program takes the number of a file descriptor and the name of the model. It reads lists of
encoded images, and tells when it has answered each.
"""

import atexit
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Full, Queue
from threading import Thread

MODEL = "RETRAIN_SHADOW"
MOST_WAITING = 500  # images in memory
MOST_AT_ONCE = 64  # images
LAST_SECONDS = 5.0  # for each of the things that a server which ends waits for
PRIORITY = 10  # less than others', as `nice` counts it

logger = logging.getLogger(__name__)


class Shadow:
    """Sends images to a process that answers for another model, from a thread."""

    def __init__(self, model: str) -> None:
        """Starts the process and the thread; a warning says when the process has ended.

        Args:
            model: The model, as `mlflow.pyfunc.load_model` takes it.
        """
        self._model = model
        self._waiting: Queue[bytes | None] = Queue(MOST_WAITING)
        self._pipe, other_end = Pipe()
        with other_end:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-B", __file__, str(other_end.fileno()), model],
                env={name: value for name, value in os.environ.items() if name != MODEL},
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._thread = Thread(target=self._send_all, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, images: Sequence[bytes]) -> None:
        """Takes encoded images; waits for none, and leaves out what there is no room for."""
        try:
            for image in images:
                self._waiting.put_nowait(image)
        except Full:
            return

    def close(self) -> None:
        """Has what waits answered, for some seconds at most, and ends the process."""
        if self._thread.is_alive():
            with suppress(Full):
                self._waiting.put(None, timeout=LAST_SECONDS)
            self._thread.join(LAST_SECONDS)
        self._pipe.close()
        try:
            self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the journal has what it has answered
            self._process.wait()

    def _send_all(self) -> None:
        goes_on = True
        while goes_on:
            first = self._waiting.get()
            others = min(self._waiting.qsize(), MOST_AT_ONCE - 1)
            taken = [first, *(self._waiting.get_nowait() for _ in range(others))]
            goes_on = None not in taken
            try:
                self._pipe.send([image for image in taken if image is not None])
                self._pipe.recv()
            except (OSError, EOFError):
                logger.warning("%s=%s has ended, and answers no more.", MODEL, self._model)
                return


def start(is_logged: bool) -> Shadow | None:
    """The shadow that the environment asks for; None if it asks for none.

    Args:
        is_logged: Whether answers are logged, without which a shadow is of no use.

    Raises:
        ValueError: They are not.
    """
    if not (model := os.environ.get(MODEL)):
        return None
    if not is_logged:
        raise ValueError(f"{MODEL} answers for the log: set RETRAIN_LOG_PREDICTIONS, too.")
    return Shadow(model)


def main(pipe: Connection, model: str) -> None:
    """Answers until the other end of the pipe is closed; see the module."""
    import mlflow
    import pandas as pd

    os.nice(PRIORITY)
    classifier = mlflow.pyfunc.load_model(model)
    try:
        while True:
            if images := pipe.recv():
                classifier.predict(pd.DataFrame({"image": images}))
            pipe.send(len(images))
    except (EOFError, OSError):  # the server has ended
        return


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), sys.argv[2])
