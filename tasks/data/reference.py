"""Samples of images with the answers of a model; drift is measured against one, the reference.

The reference of a version is a sample of the test split that it was evaluated on. `evaluate` writes
it, with its predictions and the facts of the images that `validate` has measured. A version that is
promoted keeps it with the MLflow run of its training, so that it is available without the store and
the data.
"""

import shutil
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from retrain.project import Project
from retrain.registry import tracking
from retrain.registry.versions import ModelVersion
from tasks.data.image_facts import FACTS, of_size
from tasks.data.predictions import FILE

REFERENCE = "reference.parquet"  # in the output of `evaluate`
FOLDER = "reference"  # of the run's artifacts
SAMPLE = 1000  # images, about; a sample shows a shift of 0.1 between two distributions
WITH_FEATURES = 500  # of the sample; each has thousands of bytes of features
# A sample: the image, the label and the confidence of a model's answer, what the last layer of the
# model takes (null but for `WITH_FEATURES` images, and for a model that does not tell it), and the
# facts.
SCHEMA = pa.schema(
    {
        "sha256": pa.string(),
        "label": pa.string(),
        "confidence": pa.float32(),
        **dict.fromkeys(FACTS, pa.float64()),
        "features": pa.list_(pa.float32()),
    }
)


def is_sampled(digest: str, total: int, size: int = SAMPLE) -> bool:
    """Whether an image belongs to the sample of a number of images; a smaller one is a part of it.

    The last digits of the digest decide. Where images may have copies it is that of a path: else
    all copies would be in the sample, or none.
    """
    return int(digest[-8:], 16) * total < size << 32


def write_reference(
    images: pa.Table, features: Mapping[str, NDArray[np.float32]], evaluated: Path
) -> None:
    """Writes a sample of the test split with its predictions: `SCHEMA`.

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
            **of_size(known.pop("width"), known.pop("height")),
            **known,
        }
        for answer, known in zip(answers, facts, strict=True)
        if is_sampled(answer["sha256"], len(answers))
    ]
    pq.write_table(pa.Table.from_pylist(sample, SCHEMA), evaluated / REFERENCE)


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
