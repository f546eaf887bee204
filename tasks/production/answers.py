"""Keeps what a model has answered in production.

The answers of the runs of `predict` are below the project's state, in
`production/<model>/answers`, a Parquet file for each run. A server writes JSON lines to a folder
that it is given (`models/prediction_log.py`).
"""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retrain import atomic
from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry.versions import ModelVersion

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
        atomic.replacing(folder / f"{run}.parquet") as aside,
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


def by(model: ModelVersion) -> pc.Expression:
    """Which answers are those of a version."""
    return pc.field("weights") == model.weights


def read(project: Project, name: str, logs: Sequence[Path], wanted: pc.Expression) -> pa.Table:
    """What the versions of a model have answered, the earliest first.

    Args:
        project: The clone.
        name: The name of the model.
        logs: The folders to which servers log, beside the project's own.
        wanted: Which rows count, by the columns of a prediction log.

    Returns:
        The rows, with the columns of a prediction log.

    Raises:
        UsageError: A folder does not exist, or a file in it is no log.
    """
    tables = [COLUMNS.empty_table()]
    for folder in (folder_of(project, name) / "answers", *logs):
        if folder in logs and not folder.is_dir():
            raise UsageError(f"--answers {folder}: there is no such folder.")
        try:
            tables += (table.filter(wanted) for table in read_log(folder))
        except (ValueError, KeyError, OSError) as error:
            raise UsageError(
                f"{folder} has a file that is no log of predictions: {error}"
            ) from error
    return pa.concat_tables(tables).sort_by("time")


def read_log(folder: Path) -> Iterator[pa.Table]:
    """The files of a folder, in `COLUMNS`; also those of servers of an earlier version.

    Raises:
        ValueError: A file has something else.
        KeyError: A row of JSON lacks a column.
        OSError: A file cannot be read.
    """
    for file in sorted(folder.glob("*.parquet")):
        yield pq.read_table(file, columns=COLUMNS.names).cast(COLUMNS)
    for file in sorted(folder.glob("*.jsonl*")):
        if not file.with_suffix(".parquet").exists():  # written from it, by an earlier version
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            whole = [json.loads(line) for line in lines if line.endswith("\n")]
            rows = [row | {"time": datetime.fromisoformat(row["time"])} for row in whole]
            yield pa.Table.from_pylist(rows, COLUMNS)
