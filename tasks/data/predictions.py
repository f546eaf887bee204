"""Reads the predictions of a split that `evaluate` wrote, for comparing two models.

`predictions.parquet` has path, sha256, pixels, label, prediction, confidence, and probabilities in
the order of the model's classes, which are in the schema's metadata.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

FILE = "predictions.parquet"
# sha256, and features (float32, a list): what the last layer takes of some of the images; it has no
# rows if the last layer of the network is not known.
FEATURES = "features.parquet"
ROWS = 4096  # read at a time


@dataclass(frozen=True)
class NamedPredictions:
    """A model's predictions for all images of a split.

    Attributes:
        known: The model's classes.
        images: uint64 (rows,), of each image as `image_id` gives it.
        labels: str (rows,), the true classes.
        predicted: str (rows,), the most probable classes.
        confidence: float32 (rows,), the probabilities of the predicted classes.
        likelihood: float32 (rows,), the probabilities of the true classes; 0 for a class that the
            model does not know.
    """

    known: tuple[str, ...]
    images: "NDArray[np.uint64]"
    labels: "NDArray[Any]"
    predicted: "NDArray[Any]"
    confidence: "NDArray[np.float32]"
    likelihood: "NDArray[np.float32]"


def image_id(pixels: str) -> int:
    """A number for an image: the first 8 bytes of what `tasks.data.pixels.digest` gives."""
    return int(pixels[:16], 16)


def read(folder: Path) -> NamedPredictions:
    """Reads the predictions in a folder."""
    import numpy as np
    from pyarrow import parquet

    parts = []
    with parquet.ParquetFile(folder / FILE) as file:
        known = tuple(json.loads(file.schema_arrow.metadata[b"labels"]))
        place = {name: index for index, name in enumerate(known)}
        for batch in file.iter_batches(ROWS):
            parts.append(_columns(batch, place))
    return NamedPredictions(known, *(np.concatenate(column) for column in zip(*parts, strict=True)))


def _columns(batch: "pa.RecordBatch", place: dict[str, int]) -> "tuple[NDArray[Any], ...]":
    """The columns of `NamedPredictions`, of some rows."""
    import numpy as np

    labels = batch["label"].to_numpy(zero_copy_only=False)
    true = np.array([place.get(label, -1) for label in labels])
    values = batch["probabilities"].flatten().to_numpy().reshape(len(batch), len(place))
    likelihood = np.where(true < 0, 0, values[np.arange(len(batch)), true])
    images = np.array([image_id(pixels) for pixels in batch["pixels"].to_pylist()], np.uint64)
    predicted = batch["prediction"].to_numpy(zero_copy_only=False)
    return images, labels, predicted, batch["confidence"].to_numpy(), likelihood
