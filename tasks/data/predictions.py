"""Reads the predictions of a split that `evaluate` wrote, for comparing two models.

`predictions.parquet` has path, sha256, pixels, label, prediction, confidence, and probabilities in
the order of the model's classes, which are in the schema's metadata. The images that a version was
trained or validated on, which no test of it may be, are in the MLflow run of its training.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain import atomic, tracking
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from tasks.data.metrics import Predictions, Tally

FILE = "predictions.parquet"
# sha256, and features (float32, a list): what the last layer takes of some of the images; it has no
# rows if the last layer of the network is not known.
FEATURES = "features.parquet"
# uint64, ascending, each image once, as `image_id` numbers them: what a version has learnt.
LEARNT = "learnt_pixels.npy"
ROWS = 4096  # read at a time


@dataclass(frozen=True)
class NamedPredictions:
    """A model's predictions for all images of a split.

    Attributes:
        known: The model's classes.
        rows: A row per image: `image` (uint64, as `image_id` gives it), `label` (the true class)
            and `prediction` (the most probable class), both texts, and `confidence` and
            `likelihood`, as in `Predictions`.
    """

    known: tuple[str, ...]
    rows: pa.Table

    @property
    def images(self) -> NDArray[np.uint64]:
        """Which image each row is of."""
        images: NDArray[np.uint64] = self.rows["image"].to_numpy()
        return images

    def take(self, rows: NDArray[np.bool_]) -> "NamedPredictions":
        """The predictions for some of the images."""
        return NamedPredictions(self.known, self.rows.filter(rows))

    def indexed(self, names: Sequence[str]) -> Predictions:
        """The same, with indices of names instead of the names."""
        place = pa.array(names, pa.string())
        labels, predicted = (
            pc.index_in(self.rows[column], place).to_numpy().astype(np.int64)
            for column in ("label", "prediction")
        )
        return Predictions(
            labels,
            predicted,
            self.rows["confidence"].to_numpy(),
            self.rows["likelihood"].to_numpy(),
        )

    def tally(self, classes: Sequence[str]) -> Tally:
        """What they add up to.

        Args:
            classes: Those of the data.
        """
        names = tuple(dict.fromkeys((*classes, *self.known)))
        return Tally(names, len(classes), self.indexed(names))


def image_id(pixels: str) -> int:
    """A number for an image: the first 8 bytes of what `tasks.data.pixels.digest` gives."""
    return int(pixels[:16], 16)


def read(folder: Path) -> NamedPredictions:
    """Reads the predictions in a folder."""
    parts = []
    with pq.ParquetFile(folder / FILE) as file:
        known = known_classes(file)
        for batch, probabilities in batches(file, known):
            images = [image_id(pixels) for pixels in batch["pixels"].to_pylist()]
            likelihood = likelihoods(probabilities, batch["label"], known)
            columns = {
                "image": pa.array(np.array(images, np.uint64)),
                **{name: batch[name] for name in ("label", "prediction", "confidence")},
                "likelihood": pa.array(likelihood),
            }
            parts.append(pa.table(columns))
    return NamedPredictions(known, pa.concat_tables(parts))


def known_classes(file: pq.ParquetFile) -> tuple[str, ...]:
    """The classes of the model whose answers are in a file."""
    return tuple(json.loads(file.schema_arrow.metadata[b"labels"]))


def batches(
    file: pq.ParquetFile, known: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.float32]]]:
    """Reads a file with answers.

    Args:
        file: One with the column `probabilities`.
        known: The classes of the model.

    Yields:
        Some rows, and the probabilities of the classes, float32 (rows, classes); zeros in a row
        without an answer.
    """
    for batch in file.iter_batches(ROWS):
        given = batch["probabilities"]
        probabilities = np.zeros((len(batch), len(known)), np.float32)
        answered = given.is_valid().to_numpy(zero_copy_only=False)
        values = given.drop_null().flatten().to_numpy()
        probabilities[answered] = values.reshape(-1, len(known))
        yield batch, probabilities


def likelihoods(
    probabilities: NDArray[np.float32], labels: pa.Array, known: Sequence[str]
) -> NDArray[np.float32]:
    """The probabilities of the true classes; 0 for a class that the model does not know.

    Args:
        probabilities: float32 (rows, classes of the model).
        labels: The names of the true classes, null where there is none.
        known: The names of the model's classes.
    """
    place = pc.index_in(labels, pa.array(known, pa.string())).fill_null(-1).to_numpy()
    of_true = probabilities[np.arange(len(place)), place]
    return np.where(place < 0, np.float32(0), of_true)


def learnt_images(project: Project, version: ModelVersion) -> Path | None:
    """The file with the images that a version was trained or validated on; kept on this machine.

    Those of the versions that its training started from are among them. None if that was not
    recorded: it says nothing about what the version has learnt.
    """
    folder = project.state / "learnt_pixels"
    kept = folder / f"{version.run_id}.npy"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        content = tracking.read_artifact(project, version.run_id, f"evaluate/{LEARNT}")
        with atomic.replacing(kept) as partial:
            # Nothing was recorded by an older version of this project; an empty file says so.
            partial.write_bytes(content or b"")
    return kept if kept.stat().st_size else None
