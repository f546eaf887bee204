"""Writes the predictions of each row, and prepares them for counting.

A model's classes and the data's are matched by name: the data may have had fewer classes when the
champion was trained.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.data.metrics import Predictions
from tasks.data.predictions import FEATURES, FILE

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


COLUMNS = ("path", "sha256", "pixels", "label")  # that describe an image


@dataclass(frozen=True)
class Answers:
    """A model's answers for some rows.

    Attributes:
        rows: The `COLUMNS`.
        best: int64 (rows,), the indices of the predicted classes among the model's.
        probabilities: float32 (rows, classes of the model).
    """

    rows: "pa.RecordBatch"
    best: "NDArray[np.int64]"
    probabilities: "NDArray[np.float32]"


def all_names(classes: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The classes of the data, then those that only the model knows."""
    return tuple(dict.fromkeys((*classes, *known)))


def write(
    answers: Iterable[Answers], known: Sequence[str], classes: Sequence[str], folder: Path
) -> "Iterator[tuple[pa.RecordBatch, Predictions]]":
    """Writes `predictions.parquet`, a row group for each of the answers.

    Its columns are path, sha256, pixels, label, prediction, confidence, and probabilities in the
    order of the model's labels, which are in the schema's metadata.

    Args:
        answers: In the order of the split's rows.
        known: The model's labels.
        classes: The data's.
        folder: Where the file goes.

    Yields:
        The rows as written, and the same for counting, with the indices of `all_names`.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import parquet

    # From a class of the model to its index among the names, and from one of the data to its index
    # among the model's; -1 for one that the model does not know.
    names = all_names(classes, known)
    place, place_known = (
        {name: index for index, name in enumerate(each)} for each in (names, known)
    )
    to_name = np.array([place[name] for name in known])
    to_known = np.array([place_known.get(name, -1) for name in classes])
    schema = _schema(known)
    with parquet.ParquetWriter(folder / FILE, schema) as writer:
        for answer in answers:
            labels = pc.index_in(answer.rows["label"], pa.array(classes, pa.string()))
            labels = labels.to_numpy().astype(np.int64)
            true = to_known[labels]
            likelihood, confidence = (
                np.take_along_axis(answer.probabilities, column[:, None], axis=1)[:, 0]
                for column in (true, answer.best)
            )
            predictions = Predictions(
                labels, to_name[answer.best], confidence, np.where(true >= 0, likelihood, 0)
            )
            prediction = pa.DictionaryArray.from_arrays(answer.best, list(known)).cast(pa.string())
            probabilities = pa.FixedSizeListArray.from_arrays(
                answer.probabilities.ravel(), len(known)
            )
            columns = [
                *answer.rows.columns,
                prediction,
                pa.array(confidence),
                probabilities.cast(schema.field("probabilities").type),
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            writer.write_batch(batch)
            yield batch, predictions


def write_features(
    images: Sequence[str], features: "Sequence[NDArray[np.float32]]", folder: Path
) -> None:
    """Writes `features.parquet`.

    Args:
        images: The SHA-256 (hex) of each image.
        features: Of the images, in arrays of some rows, float32 (n, D); none of a network whose
            last layer is not known. Then the file has no rows.
        folder: Where it goes.
    """
    import pyarrow as pa
    from pyarrow import parquet

    columns = {
        "sha256": pa.array(images if features else [], pa.string()),
        "features": pa.array([row for each in features for row in each], pa.list_(pa.float32())),
    }
    parquet.write_table(pa.table(columns), folder / FEATURES)


def _schema(known: Sequence[str]) -> "pa.Schema":
    """The columns of the predictions."""
    import pyarrow as pa

    columns = {
        **dict.fromkeys(COLUMNS, pa.string()),
        "prediction": pa.string(),
        "confidence": pa.float32(),
        "probabilities": pa.list_(pa.float32()),
    }
    return pa.schema(columns, metadata={"labels": json.dumps(list(known))})
