"""Logs what a served model answers, for `retrain production`.

It is off unless RETRAIN_LOG_PREDICTIONS names a folder. A request does not wait for the disk, and
is answered whatever becomes of the log: rows for which there is no room are dropped. The images are
not kept, but for their SHA-256.

Each second, a thread appends what has come to a journal (JSON lines), which a server that is killed
leaves behind. An hour of it, or 10,000 rows, becomes a Parquet file with the name of the journal.
"""

import atexit
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from time import monotonic, sleep, time_ns
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER, SHARE = "RETRAIN_LOG_PREDICTIONS", "RETRAIN_LOG_SHARE"
MOST_WAITING = 10_000  # rows in memory, of about 300 bytes
MOST_ROWS = 10_000  # of a file
MOST_SECONDS = 3600.0  # after which a file is written that has fewer
JOURNAL_SECONDS = 1.0
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
        goes_on = True
        while goes_on:
            journal = self._folder / f"{time_ns()}-{os.getpid()}.jsonl"
            rows: list[dict[str, Any]] = []
            began = monotonic()
            while goes_on and len(rows) < MOST_ROWS and monotonic() - began < MOST_SECONDS:
                fresh = self._take()
                goes_on = None not in fresh
                fresh_rows = [row for row in fresh if row]
                rows += fresh_rows
                self._try(partial(_append, journal, fresh_rows), len(fresh_rows))
            self._try(partial(_finish, journal, rows), len(rows))

    def _take(self) -> list[dict[str, Any] | None]:
        """What comes within a while, at least one row of it; None is the end."""
        sleep(JOURNAL_SECONDS if self._waiting.empty() else 0.0)
        return [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]

    def _try(self, write: Callable[[], None], rows: int) -> None:
        """Writes some rows, if there are any; a warning says why it cannot be done."""
        try:
            if rows:
                write()
        except OSError as error:
            logger.warning("%d answers could not be logged: %s", rows, error)


def _append(journal: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with journal.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, default=datetime.isoformat) + "\n")


def _finish(journal: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the rows of a journal as Parquet, and removes it."""
    aside = journal.with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(list(rows), COLUMNS), aside)
    aside.rename(journal.with_suffix(".parquet"))
    journal.unlink(missing_ok=True)


def read(folder: Path) -> Iterator[pa.Table]:
    """The files of a folder, in `COLUMNS`, with the journals that are not finished.

    Raises:
        ValueError: A file has something else.
        OSError: A file cannot be read.
    """
    for file in sorted(folder.glob("*.parquet")):
        yield pq.read_table(file, columns=COLUMNS.names).cast(COLUMNS)
    for journal in sorted(folder.glob("*.jsonl")):
        if not journal.with_suffix(".parquet").exists():
            lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
            rows = [row | {"time": datetime.fromisoformat(row["time"])} for row in whole]
            yield pa.Table.from_pylist(rows, COLUMNS)


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
