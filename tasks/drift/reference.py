"""The reference of a version: a sample of the test split that it was evaluated on.

It is made of what the store has of the version's evaluation, the first time that somebody asks, and
kept. A statistic that is recorded at registration would have to be computed for every model, also
for those that are never promoted, would be missing for the models that are registered already, and
could not be changed later. The predictions of the evaluation are those of the package; the images
are read again for their facts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.project import Project
from retrain.registry.versions import ModelVersion
from retrain.store import Store
from retrain.workload import Data
from tasks.data.accepted_images import read_images
from tasks.data.image_facts import is_sampled, measure, schema
from tasks.data.raw_dataset import open_format

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT = "test"
PREDICTIONS = "predictions.parquet"


def find_reference(project: Project, version: ModelVersion) -> "pa.Table | None":
    """The reference of a version; None if the store has lost what it is made of.

    There is none either for an old version, of which nobody knows the package that was evaluated.
    """
    import pyarrow.parquet as pq

    if version.package_digest is None:
        return None
    name = f"reference-{version.package_digest[:16]}.parquet"
    file = project.state / "drift" / version.name / name
    if not file.exists():
        table = _of_test_split(Store(project.store), version)
        if table is None:
            return None
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        pq.write_table(table, partial)
        partial.replace(file)
    return pq.read_table(file)


def _of_test_split(store: Store, version: ModelVersion) -> "pa.Table | None":
    """A sample of the test split of the version's evaluation, with its predictions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    evaluated = _find(
        store, "evaluate", lambda each: each["facts"].get("package") == version.package_digest
    )
    embedded = _input_of(store, evaluated, "embed")
    prepared = _input_of(store, embedded or evaluated, "preprocess")
    pulled, validated = (_input_of(store, prepared, name) for name in ("pull", "validate"))
    if not (evaluated and prepared and pulled and validated):
        return None
    columns = ["sha256", "prediction", "confidence"]
    given = pq.read_table(evaluated[0] / PREDICTIONS, columns=columns)
    rows = [
        row
        for row, sha256 in enumerate(given["sha256"].to_pylist())
        if is_sampled(sha256, len(given))
    ]
    answers = given.take(rows).to_pylist()
    config = prepared[1]["plan"]["config"]
    names = {name: config[f"data.{name}"] for name in ("image_column", "label_column")}
    source = open_format(pulled[1]["facts"]["format"], Data(path="data", **names), pulled[0])
    found = []
    images = read_images(source, validated[0], SPLIT, rows)
    for answer, image in zip(answers, images, strict=True):
        assert answer["sha256"] == image.sha256, image.path
        if facts := measure(image.data):
            label, confidence = answer["prediction"], answer["confidence"]
            found.append({"label": label, "confidence": confidence, **facts})
    return pa.Table.from_pylist(found, schema())


Found = tuple[Path, Mapping[str, Any]]  # the folder of an artifact, and its manifest


def _find(store: Store, step: str, matches: Callable[[Mapping[str, Any]], bool]) -> Found | None:
    """An artifact of a step whose manifest matches."""
    for name, key in store.entries():
        if name == step:
            manifest, damage = store.inspect(step, key)
            if not damage and matches(manifest):
                return store.folder(step, key), manifest
    return None


def _input_of(store: Store, found: Found | None, step: str) -> Found | None:
    """The output of a step that an artifact was made of."""
    digest = found and found[1]["plan"]["inputs"].get(step)
    return _find(store, step, lambda each: each["digest"] == digest) if digest else None
