"""Logs what a served model answers, for `retrain drift`.

It is off unless RETRAIN_LOG_PREDICTIONS names a folder. A request does not wait for the disk, and
is answered whatever becomes of the log: rows for which there is no room are dropped. The images are
not kept, but for their SHA-256.

A thread appends each row to a file of JSON lines, which a server that is killed leaves behind. Each
process writes files of its own, one for each hour.
"""

import atexit
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from logging.handlers import QueueListener, TimedRotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from sys import exc_info
from time import monotonic, time_ns
from typing import Any

FOLDER = "RETRAIN_LOG_PREDICTIONS"
MOST_WAITING = 10_000  # rows in memory, of about 500 bytes
SECONDS_QUIET = 60.0  # after a warning

logger = logging.getLogger(__name__)


class PredictionLog:
    """Writes rows of JSON to files of a folder, in a thread.

    A row has the `sha256` (hex) of the encoded image, the `label`, its probability as `confidence`,
    the `time` in UTC, and the SHA-256 (hex) of the `weights` that answered.
    """

    def __init__(self, folder: Path, weights: str) -> None:
        """Starts the thread.

        Args:
            folder: Is made if it does not exist.
            weights: SHA-256 (hex) of the weights that answer.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._weights = weights
        self._waiting: SimpleQueue[logging.LogRecord] = SimpleQueue()
        self._file = _Files(folder / f"{time_ns()}-{os.getpid()}.jsonl")
        self._listener = QueueListener(self._waiting, self._file)
        self._listener.start()
        atexit.register(self.close)

    def put(self, images: Sequence[bytes], answers: Sequence[Mapping[Any, Any]]) -> None:
        """Takes encoded images with their `label` and `probabilities` (by class); waits for none.

        Rows that the thread has no room for are dropped.
        """
        now = datetime.now(UTC).isoformat()
        for image, answer in zip(images, answers, strict=True):
            if self._waiting.qsize() < MOST_WAITING:
                label, sha256 = answer["label"], hashlib.sha256(image).hexdigest()
                row = {"sha256": sha256, "label": label, "time": now, "weights": self._weights}
                row["confidence"] = answer["probabilities"][label]
                self._waiting.put(logging.makeLogRecord({"msg": json.dumps(row)}))

    def close(self) -> None:
        """Writes what waits, and ends the thread."""
        atexit.unregister(self.close)
        self._listener.stop()
        self._file.close()


class _Files(TimedRotatingFileHandler):
    """Appends lines to a file, which gets another name after an hour; removes none."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, when="H", encoding="utf-8", delay=True, utc=True)
        self._quiet_until = 0.0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's own name
        """Warns that a line could not be written, once in a while."""
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + SECONDS_QUIET
            logger.warning("Answers could not be logged: %s", exc_info()[1])


def start(weights: str) -> PredictionLog | None:
    """The log that the environment asks for; None if it asks for none.

    Args:
        weights: SHA-256 (hex) of the weights that answer.

    Raises:
        ValueError: The folder cannot be made.
    """
    if not (folder := os.environ.get(FOLDER)):
        return None
    try:
        return PredictionLog(Path(folder), weights)
    except OSError as error:
        raise ValueError(f"{FOLDER}: {error}") from error
