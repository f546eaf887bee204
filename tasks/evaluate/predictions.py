"""Writes the predictions of each row, as `tasks/data/predictions.py` reads them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.data.predictions import FEATURES

COLUMNS = ("path", "sha256", "pixels", "label")  # that describe an image


# A model's answers for some images: int64 (images,), the indices of the predicted classes among the
# model's; and float32 (images, classes of the model), the probabilities.
Answers = tuple[NDArray[np.int64], NDArray[np.float32]]


def write(images: pa.Table, answers: Iterable[Answers], labels: Sequence[str], file: Path) -> None:
    """Writes a file such as `predictions.parquet`, a row group for each of the answers.

    Its columns are path, sha256, pixels, label, prediction, confidence, and probabilities in the
    order of the model's labels, which are in the schema's metadata.

    Args:
        images: The images, with the first four columns.
        answers: For some images at a time, in order.
        labels: The model's labels.
        file: Where to write.
    """
    names, schema, first = pa.array(labels, pa.string()), _schema(labels), 0
    with pq.ParquetWriter(file, schema) as writer:
        for best, probabilities in answers:
            lists = pa.FixedSizeListArray.from_arrays(probabilities.ravel(), len(labels))
            values = [
                *images.slice(first, len(best)).select(COLUMNS).columns,
                names.take(pa.array(best)),
                pa.array(probabilities[np.arange(len(best)), best]),
                lists.cast(schema.field("probabilities").type),
            ]
            writer.write_table(pa.Table.from_arrays(values, schema=schema))
            first += len(best)
    assert first == len(images), (first, len(images))


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
