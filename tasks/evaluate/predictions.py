"""Writes the predictions of each row, as `tasks/data/predictions.py` reads them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.data.predictions import FEATURES

COLUMNS = ("path", "sha256", "pixels", "label")  # that describe an image


@dataclass(frozen=True)
class Answers:
    """A model's answers for some rows.

    Attributes:
        rows: The `COLUMNS`.
        best: int64 (rows,), the indices of the predicted classes among the model's.
        probabilities: float32 (rows, classes of the model).
    """

    rows: pa.RecordBatch
    best: NDArray[np.int64]
    probabilities: NDArray[np.float32]


def write(answers: Iterable[Answers], labels: Sequence[str], file: Path) -> None:
    """Writes a file such as `predictions.parquet`, a row group for each of the answers.

    Its columns are path, sha256, pixels, label, prediction, confidence, and probabilities in the
    order of the model's labels, which are in the schema's metadata.

    Args:
        answers: In the order of the split's rows.
        labels: The model's labels.
        file: Where to write.
    """
    names, schema = pa.array(labels, pa.string()), _schema(labels)
    with pq.ParquetWriter(file, schema) as writer:
        for answer in answers:
            confidence = answer.probabilities[np.arange(len(answer.best)), answer.best]
            lists = pa.FixedSizeListArray.from_arrays(answer.probabilities.ravel(), len(labels))
            values = [
                *answer.rows.columns,
                names.take(pa.array(answer.best)),
                pa.array(confidence),
                lists.cast(schema.field("probabilities").type),
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(values, schema=schema))


def _schema(labels: Sequence[str]) -> pa.Schema:
    columns = {
        **dict.fromkeys(COLUMNS, pa.string()),
        "prediction": pa.string(),
        "confidence": pa.float32(),
        "probabilities": pa.list_(pa.float32()),
    }
    return pa.schema(columns, metadata={"labels": json.dumps(list(labels))})


def write_features(
    images: Sequence[str], features: Sequence[NDArray[np.float32]], folder: Path
) -> None:
    """Writes `features.parquet`.

    Args:
        images: The SHA-256 (hex) of each image.
        features: The features of the images, in arrays of some rows, float32 (n, D).
            Empty for a network whose last layer is not known; then the file has no rows.
        folder: The folder of the file.
    """
    columns = {
        "sha256": pa.array(images if features else [], pa.string()),
        "features": pa.array([row for array in features for row in array], pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(columns), folder / FEATURES)
