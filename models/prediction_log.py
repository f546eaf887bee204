"""Logs what a served model answers, for `retrain production`.

It is off unless RETRAIN_LOG_PREDICTIONS names a folder. A request does not wait for the disk, and
is answered whatever becomes of the log: rows for which there is no room are dropped. The images are
not kept, but for their SHA-256.
"""

import atexit
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Thread
from time import monotonic, time_ns
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER, SHARE = "RETRAIN_LOG_PREDICTIONS", "RETRAIN_LOG_SHARE"
MOST_WAITING = 10_000  # rows in memory, of about 300 bytes
MOST_ROWS = 10_000  # of a file
FLUSH_SECONDS = 30.0  # after which a file is written that has fewer
COLUMNS = pa.schema(
    {
        "sha256": pa.string(),  # hex, of the encoded image
        "label": pa.string(),
        "confidence": pa.float32(),  # the probability of the label
        "time": pa.timestamp("ms", "UTC"),
        "weights": pa.string(),  # SHA-256 (hex) of the weights that answered
    }
)

logger = logging.getLogger(__name__)


class PredictionLog:
    """Writes rows of `COLUMNS` to Parquet files of a folder, in a thread."""

    def __init__(self, folder: Path, weights: str, share: float = 1.0) -> None:
        """Starts the thread.

        Args:
            folder: Is made if it does not exist.
            weights: SHA-256 (hex) of the weights that answer.
            share: The fraction of the images that is logged, 0 to 1. The same image always is, or
                never.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._weights, self._share = folder, weights, share
        self._waiting: Queue[dict[str, Any] | None] = Queue(MOST_WAITING)
        self._thread = Thread(target=self._write_all, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, images: Sequence[bytes], answers: Sequence[Mapping[str, Any]]) -> None:
        """Takes encoded images with their `label` and `probabilities` (by class); waits for none.

        Rows that the thread has no room for are dropped.
        """
        now = datetime.now(UTC)
        for image, answer in zip(images, answers, strict=True):
            sha256 = hashlib.sha256(image).hexdigest()
            if int(sha256[:8], 16) >= self._share * 16**8:
                continue
            label = answer["label"]
            row = {"sha256": sha256, "label": label, "time": now, "weights": self._weights}
            try:
                self._waiting.put_nowait(row | {"confidence": answer["probabilities"][label]})
            except Full:
                return

    def close(self) -> None:
        """Writes what waits, and ends the thread."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _write_all(self) -> None:
        rows: list[dict[str, Any]] = []
        began, goes_on = monotonic(), True
        while goes_on:
            try:
                row = self._waiting.get(timeout=max(0.0, began + FLUSH_SECONDS - monotonic()))
                goes_on = row is not None
                rows += [row] if row else []
            except Empty:
                pass
            is_late = monotonic() - began >= FLUSH_SECONDS
            if len(rows) >= MOST_ROWS or is_late or not goes_on:
                self._write(rows)
                rows, began = [], monotonic()

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes a file, which appears as a whole; what cannot be written is lost."""
        if not rows:
            return
        file = self._folder / f"{time_ns()}-{os.getpid()}.parquet"
        partial = file.with_suffix(".partial")
        try:
            pq.write_table(pa.Table.from_pylist(list(rows), COLUMNS), partial)
            partial.rename(file)
        except OSError as error:
            logger.warning("%d answers could not be logged: %s", len(rows), error)
            partial.unlink(missing_ok=True)


def start(weights: str) -> PredictionLog | None:
    """The log that the environment asks for; None if it asks for none.

    Args:
        weights: SHA-256 (hex) of the weights that answer.

    Raises:
        ValueError: RETRAIN_LOG_SHARE is no number from 0 to 1, or the folder cannot be made.
    """
    if not (folder := os.environ.get(FOLDER)):
        return None
    text = os.environ.get(SHARE, "1")
    try:
        if not 0 <= (share := float(text)) <= 1:
            raise ValueError
    except ValueError:
        raise ValueError(f"{SHARE}: {text} is no number from 0 to 1.") from None
    try:
        return PredictionLog(Path(folder), weights, share)
    except OSError as error:
        raise ValueError(f"{FOLDER}: {error}") from error
