"""Writes and reads the predictions of a split, by which two models are compared.

`predictions.parquet` has path, sha256, pixels, label, prediction, confidence, and probabilities in
the order of the model's classes, which are in the schema's metadata. The images that a version was
trained or validated on, which no test of it may be, are in the MLflow run of its training.

Drift is measured against a sample of images with the answers of a model. The reference of a version
is a sample of the test split that it was evaluated on: `evaluate` writes it, with its predictions
and the facts of the images that `validate` has measured. A version that is promoted keeps it with
the MLflow run of its training, so that it is available without the store and the data.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain import file_io
from retrain.project import Project
from retrain.registry import tracking
from retrain.registry.versions import ModelVersion
from tasks.data.image_facts import FACTS, image_id, size_facts
from tasks.data.metrics import Predictions, Tally

FILE = "predictions.parquet"
# The images that a version was trained or validated on: uint64, ascending, each once, as
# `image_id` gives them.
LEARNT = "learnt_pixels.npy"
# Of the images of the predictions, in their order: int64, the same for those that belong together.
GROUPS = "groups.npy"
ROWS = 4096  # read at a time
COLUMNS = ("path", "sha256", "pixels", "label")  # that describe an image

REFERENCE = "reference.parquet"  # in the output of `evaluate`
FOLDER = "reference"  # of the run's artifacts
SAMPLE = 1000  # images, about; a sample shows a shift of 0.1 between two distributions
WITH_FEATURES = 500  # of the sample; each has thousands of bytes of features
# A sample: the image, the label and the confidence of a model's answer, what the last layer of the
# model takes (null but for `WITH_FEATURES` images, and for a model that does not tell it), and the
# facts.
SAMPLE_SCHEMA = pa.schema(
    {
        "sha256": pa.string(),
        "label": pa.string(),
        "confidence": pa.float32(),
        **dict.fromkeys(FACTS, pa.float64()),
        "features": pa.list_(pa.float32()),
    }
)


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
        """The predictions, with the classes as indices in `names`."""
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
        """The counts and metrics of the predictions.

        Args:
            classes: The classes of the data.
        """
        names = tuple(dict.fromkeys((*classes, *self.known)))
        return Tally(names, len(classes), self.indexed(names))


def read(folder: Path) -> NamedPredictions:
    """Reads the predictions in a folder."""
    parts = []
    with pq.ParquetFile(folder / FILE) as file:
        classes = tuple(json.loads(file.schema_arrow.metadata[b"labels"]))
        for batch in file.iter_batches(ROWS):
            probabilities = batch["probabilities"].flatten().to_numpy().reshape(len(batch), -1)
            images = [image_id(pixels) for pixels in batch["pixels"].to_pylist()]
            place = pc.index_in(batch["label"], pa.array(classes)).fill_null(-1).to_numpy()
            # The model may not know the true class.
            likelihood = np.where(place < 0, 0, probabilities[np.arange(len(place)), place])
            columns = {
                "image": pa.array(np.array(images, np.uint64)),
                **{name: batch[name] for name in ("label", "prediction", "confidence")},
                "likelihood": pa.array(likelihood, pa.float32()),
            }
            parts.append(pa.table(columns))
    return NamedPredictions(classes, pa.concat_tables(parts))


def write(
    images: pa.Table,
    answers: Iterable[NDArray[np.float32]],
    labels: Sequence[str],
    file: Path,
) -> None:
    """Writes a file such as `predictions.parquet`, a row group for each of the answers.

    Its columns are path, sha256, pixels, label, prediction, confidence, and probabilities in the
    order of the model's labels, which are in the schema's metadata.

    Args:
        images: The images, with the first four columns.
        answers: Of some images at a time, in order: float32 (images, labels), the probabilities.
        labels: The model's labels.
        file: Where to write.
    """
    columns = {
        **dict.fromkeys((*COLUMNS, "prediction"), pa.string()),
        "confidence": pa.float32(),
        "probabilities": pa.list_(pa.float32()),
    }
    schema = pa.schema(columns, metadata={"labels": json.dumps([*labels])})
    names, first = pa.array(labels, pa.string()), 0
    with pq.ParquetWriter(file, schema) as writer:
        for probabilities in answers:
            described = images.slice(first, len(probabilities)).select(COLUMNS).columns
            predicted = names.take(pa.array(probabilities.argmax(axis=1)))
            lists = pa.FixedSizeListArray.from_arrays(probabilities.ravel(), len(labels))
            values = [*described, predicted, probabilities.max(axis=1), lists]
            writer.write_table(pa.table(values, names=schema.names).cast(schema))
            first += len(probabilities)
    assert first == len(images), (first, len(images))


def learnt_images(project: Project, version: ModelVersion) -> Path | None:
    """The file with the images that a version was trained or validated on; kept on this machine.

    It includes the images of the versions that the training started from. None if the run of its
    training has lost them; the version may have learnt any image then.
    """
    file = project.state / "learnt_pixels" / f"{version.run_id}.npy"
    if not file.exists():
        content = tracking.read_artifact(project, version.run_id, f"evaluate/{LEARNT}")
        if content is None:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        with file_io.replacing(file) as partial:
            partial.write_bytes(content)
    return file


def are_learnt(
    images: NDArray[np.uint64], groups: NDArray[np.int64], learnt: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Which test images are no test of a model, because it has learnt them, or one of their group.

    Args:
        images: The images, as `image_id` gives them.
        groups: int64 (images,), the same number for images that belong together.
        learnt: The images that the model was trained or validated on.
    """
    return np.isin(groups, groups[np.isin(images, learnt)])


def is_sampled(digest: str, total: int, size: int = SAMPLE) -> bool:
    """Whether an image belongs to the sample of a number of images; a smaller one is a part of it.

    The last digits of the digest decide. Where images may have copies it is that of a path: else
    all copies would be in the sample, or none.
    """
    return int(digest[-8:], 16) * total < size << 32


def write_reference(
    images: pa.Table, features: Mapping[str, NDArray[np.float32]], evaluated: Path
) -> None:
    """Writes a sample of the test split with its predictions: `SAMPLE_SCHEMA`.

    Args:
        images: The test images, as `tasks.data.image_table` has them.
        features: What the last layer of the network takes, of some of the images, by their
            SHA-256 (hex); empty if the last layer is not known.
        evaluated: The output of `evaluate`, with the predictions.
    """
    columns = ["sha256", "prediction", "confidence"]
    answers = pq.read_table(evaluated / FILE, columns=columns).to_pylist()
    facts = images.select(["width", "height", "brightness", "contrast"]).to_pylist()
    sample = [
        {
            "sha256": answer["sha256"],
            "features": features.get(answer["sha256"]),
            "label": answer["prediction"],
            "confidence": answer["confidence"],
            **size_facts(known.pop("width"), known.pop("height")),
            **known,
        }
        for answer, known in zip(answers, facts, strict=True)
        if is_sampled(answer["sha256"], len(answers))
    ]
    pq.write_table(pa.Table.from_pylist(sample, SAMPLE_SCHEMA), evaluated / REFERENCE)


def find_reference(project: Project, version: ModelVersion) -> pa.Table | None:
    """The reference of a version; None if there is none, as of one that was never promoted."""
    path = f"{FOLDER}/{version.package_digest}.parquet"
    content = tracking.read_artifact(project, version.run_id, path)
    return pq.read_table(BytesIO(content)) if content else None


def keep_reference(project: Project, version: ModelVersion, evaluated: Path) -> None:
    """Keeps the reference that is in the output of `evaluate` with the run of the training."""
    with TemporaryDirectory() as folder:
        shutil.copyfile(evaluated / REFERENCE, f"{folder}/{version.package_digest}.parquet")
        tracking.log_artifacts(project, version.run_id, Path(folder), FOLDER)
