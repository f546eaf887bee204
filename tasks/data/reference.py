"""Makes the reference of a version: a sample of the test split that it was evaluated on.

Drift is measured against it. It is made when the version is about to be promoted, and is kept with
the MLflow run of the training, so that it is available without the store and the data. For a
version that was never promoted, it is made on demand from the evaluation in the store. The
predictions are those of the evaluation; the images are read again for their facts.

By default, two versions are also compared on the images of an evaluation in the store.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retrain import tracking
from retrain.project import Project
from retrain.registry import lineage
from retrain.registry.versions import ModelVersion
from retrain.store import Artifact, Store
from tasks.data.image_facts import is_sampled, measure, schema
from tasks.data.image_table import read_images
from tasks.data.predictions import FEATURES, FILE
from tasks.data.raw_dataset import RawDataset, Reader, open_pulled

SPLIT = "test"
FOLDER = "reference"  # of the run's artifacts


def find_reference(project: Project, version: ModelVersion) -> pa.Table | None:
    """The reference of a version; None if MLflow has none and the store has lost its evaluation."""
    path = f"{FOLDER}/{version.package_digest}.parquet"
    content = tracking.read_artifact(project, version.run_id, path)
    if content:
        return pq.read_table(BytesIO(content), schema=schema())  # an old one lacks features: null
    evaluated = evaluated_of(project, version)
    return evaluated and make_reference(
        evaluated.source, evaluated.validated, evaluated.predictions
    )


def keep_reference(project: Project, version: ModelVersion, table: pa.Table) -> None:
    """Keeps a reference with the MLflow run of the training."""
    with TemporaryDirectory() as folder:
        pq.write_table(table, Path(folder, f"{version.package_digest}.parquet"))
        tracking.log_artifacts(project, version.run_id, Path(folder), FOLDER)


def make_reference(source: Reader, validated: Path, evaluated: Path) -> pa.Table:
    """A sample of the test split of an evaluation, with its predictions.

    Args:
        source: The data.
        validated: The output of `validate`.
        evaluated: The output of `evaluate`.

    Returns:
        The columns of `tasks.data.image_facts.schema`.
    """
    columns = ["sha256", "prediction", "confidence"]
    predictions = pq.read_table(evaluated / FILE, columns=columns)
    rows = [
        row
        for row, sha256 in enumerate(predictions["sha256"].to_pylist())
        if is_sampled(sha256, len(predictions))
    ]
    answers = predictions.take(rows).to_pylist()
    features, features_file = {}, evaluated / FEATURES
    if features_file.exists():  # not in an old evaluation
        features = {
            row["sha256"]: row["features"] for row in pq.read_table(features_file).to_pylist()
        }
    measured = []
    images = read_images(source, validated, SPLIT, rows)
    for answer, image in zip(answers, images, strict=True):
        assert answer["sha256"] == image.sha256, image.path
        if facts := measure(image.data):
            answered = {"label": answer["prediction"], "confidence": answer["confidence"]}
            of_image = {"sha256": image.sha256, "features": features.get(image.sha256)}
            measured.append(of_image | answered | facts)
    return pa.Table.from_pylist(measured, schema())


@dataclass(frozen=True)
class Evaluated:
    """The data on which a version was evaluated, and its predictions.

    Attributes:
        predictions: The output of `evaluate`.
        validated: The output of `validate`: which images are in the test split.
        source: The data.
    """

    predictions: Path
    validated: Path
    source: RawDataset


def evaluated_of(project: Project, version: ModelVersion) -> Evaluated | None:
    """Finds the data on which a version was evaluated, here or by another machine.

    None if the store has lost a part of it.
    """
    store = Store.of(project)
    with suppress(ValueError):  # its lineage is gone or was changed, as `verify` says
        record = lineage.read(project, version) if store.remote else None
        for output in record.steps if record else ():
            if output.key:
                with store.lock(output.step, output.key):
                    store.obtain(output.step, output.key)
    return find_evaluated(store, version)


def find_evaluated(store: Store, version: ModelVersion) -> Evaluated | None:
    """Finds the data on which a version was evaluated; None if the store has lost a part of it."""
    evaluated = _find(
        store,
        "evaluate",
        lambda manifest: manifest["facts"].get("package") == version.package_digest,
    )
    embedded = _input_of(store, evaluated, "embed")
    prepared = _input_of(store, embedded or evaluated, "preprocess")
    pulled, validated = (_input_of(store, prepared, name) for name in ("pull", "validate"))
    if not (evaluated and prepared and pulled and validated):
        return None
    config = prepared[1]["config"]
    names = {name: config[f"data.{name}"] for name in ("image_column", "label_column")}
    images = open_pulled(pulled[0], **names)
    return Evaluated(evaluated[0].folder, validated[0].folder, images)


Stored = tuple[Artifact, Mapping[str, Any]]  # an artifact, and its plan


def _find(store: Store, step: str, matches: Callable[[Mapping[str, Any]], bool]) -> Stored | None:
    """An artifact of a step whose manifest matches."""
    for name, key in store.entries():
        if name == step:
            manifest, damage = store.inspect(step, key)
            if not damage and matches(manifest):
                artifact = Artifact.of(step, key, store.folder(step, key), manifest)
                return artifact, manifest["plan"]
    return None


def _input_of(store: Store, artifact: Stored | None, step: str) -> Stored | None:
    """The output of a step that an artifact was made of."""
    digest = artifact and artifact[1]["inputs"].get(step)
    return _find(store, step, lambda manifest: manifest["digest"] == digest) if digest else None
