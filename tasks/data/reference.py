"""The reference of a version: a sample of the test split that it was evaluated on.

Drift is measured against it. `evaluate` writes it, with its predictions and the facts of the images
that `validate` has measured. A version that is promoted keeps it with the MLflow run of its
training, so that it is available without the store and the data.

The data of an evaluation in the store is found here, too, for what compares two versions.
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
from tasks.data.image_facts import is_sampled, of_size, schema
from tasks.data.predictions import FEATURES, FILE
from tasks.data.reading import ImageFiles, open_images

REFERENCE = "reference.parquet"  # in the output of `evaluate`
FOLDER = "reference"  # of the run's artifacts


def write_reference(images: pa.Table, evaluated: Path) -> None:
    """Writes a sample of the test split with its predictions: `tasks.data.image_facts.schema`.

    Args:
        images: The test images, as `tasks.data.image_table` has them.
        evaluated: The output of `evaluate`, with the predictions and the features.
    """
    answers = pq.read_table(evaluated / FILE, columns=["sha256", "prediction", "confidence"])
    images = images.select(["width", "height", "brightness", "contrast"])
    features = {
        row["sha256"]: row["features"] for row in pq.read_table(evaluated / FEATURES).to_pylist()
    }
    sample = [
        {
            "sha256": answer["sha256"],
            "features": features.get(answer["sha256"]),
            "label": answer["prediction"],
            "confidence": answer["confidence"],
            **of_size(image.pop("width"), image.pop("height")),
            **image,
        }
        for answer, image in zip(answers.to_pylist(), images.to_pylist(), strict=True)
        if is_sampled(answer["sha256"], len(answers))
    ]
    pq.write_table(pa.Table.from_pylist(sample, schema()), evaluated / REFERENCE)


def find_reference(project: Project, version: ModelVersion) -> pa.Table | None:
    """The reference of a version; None if MLflow has none and the store has lost its evaluation."""
    path = f"{FOLDER}/{version.package_digest}.parquet"
    content = tracking.read_artifact(project, version.run_id, path)
    if content:
        return pq.read_table(BytesIO(content), schema=schema())  # an old one lacks features: null
    evaluated = evaluated_of(project, version)
    if evaluated is None or not (evaluated.predictions / REFERENCE).exists():
        return None
    return pq.read_table(evaluated.predictions / REFERENCE, schema=schema())


def keep_reference(project: Project, version: ModelVersion, table: pa.Table) -> None:
    """Keeps a reference with the MLflow run of the training."""
    with TemporaryDirectory() as folder:
        pq.write_table(table, Path(folder, f"{version.package_digest}.parquet"))
        tracking.log_artifacts(project, version.run_id, Path(folder), FOLDER)


@dataclass(frozen=True)
class Evaluated:
    """The data on which a version was evaluated, and its predictions.

    Attributes:
        predictions: The output of `evaluate`.
        validated: The output of `validate`: which images are in the test split.
        files: Reads the images of the data; None if the version of this project that has pulled
            them did not list them.
    """

    predictions: Path
    validated: Path
    files: ImageFiles | None


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
    files = open_images(pulled[0]) if "image_column" in pulled[0].facts else None
    return Evaluated(evaluated[0].folder, validated[0].folder, files)


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
