"""Keeps what a model has answered in production.

The answers of the runs of `predict` are below the project's state, in
`production/<model>/answers`, a Parquet file for each run. A server writes JSON lines to a folder
that it is given (`models/serving.py`).
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from retrain import disk
from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry.versions import ModelVersion

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = pa.schema(
    {
        "sha256": pa.string(),  # hex, of the encoded image
        "label": pa.string(),
        "confidence": pa.float32(),  # the probability of the label
        "time": pa.timestamp("ms", "UTC"),
        "weights": pa.string(),  # SHA-256 (hex) of the weights that answered
    }
)


def folder_of(project: Project, name: str) -> Path:
    """The folder with what is known of a model in production."""
    return project.state / "production" / name


def keep(project: Project, model: ModelVersion, predictions: Path, run: str) -> None:
    """Keeps the answers in a file that `predict` has written, without the images' names.

    Args:
        project: The clone.
        model: The version that answered.
        predictions: The file.
        run: The name of the file: the id of the flow run, or one that begins with it.
    """
    folder = folder_of(project, model.name) / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    now = pa.scalar(datetime.now(UTC), COLUMNS.field("time").type)
    columns = ["sha256", "label", "probabilities"]
    with (
        disk.replacing(folder / f"{run}.parquet") as aside,
        pq.ParquetWriter(aside, COLUMNS) as writer,
        pq.ParquetFile(predictions) as file,
    ):
        for batch in file.iter_batches(columns=columns):
            answered = batch.filter(batch["label"].is_valid())
            if not len(answered):
                continue
            probabilities = answered["probabilities"].flatten().to_numpy()
            highest = probabilities.reshape(len(answered), -1).max(axis=1)
            times, weights = (pa.repeat(value, len(answered)) for value in (now, model.weights))
            rows = [answered["sha256"], answered["label"], pa.array(highest), times, weights]
            writer.write_batch(pa.RecordBatch.from_arrays(rows, schema=COLUMNS))


def read(project: Project, name: str, logs: Sequence[Path]) -> "pd.DataFrame":
    """What the versions of a model have answered, in `COLUMNS`, the earliest first.

    Args:
        project: The clone.
        name: The name of the model.
        logs: The folders to which servers log.

    Raises:
        UsageError: A folder does not exist, or a file in it is no log.
    """
    own = sorted((folder_of(project, name) / "answers").glob("*.parquet"))
    tables = [COLUMNS.empty_table(), *(pq.read_table(file, schema=COLUMNS) for file in own)]
    for folder in logs:
        if not folder.is_dir():
            raise UsageError(f"--answers {folder}: there is no such folder.")
        tables += map(_read_log, sorted(folder.glob("*.jsonl*")))
    frame: pd.DataFrame = pa.concat_tables(tables).to_pandas()
    return frame.sort_values("time", kind="stable")


def _read_log(file: Path) -> pa.Table:
    """The rows of a log of a server; a last line without an end is not whole yet.

    Raises:
        UsageError: It is another file.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        timed = [row | {"time": datetime.fromisoformat(row["time"])} for row in rows]
        return pa.Table.from_pylist(timed, COLUMNS)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is no log of predictions: {error}") from error
