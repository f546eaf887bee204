"""The reference of a version: a sample of the test split that it was evaluated on.

It is made of what the store has of the version's evaluation, the first time that somebody asks, and
kept. The evaluation keeps the features of some images, as it has calculated them anyway. All other
statistics, recorded at registration, would have to be computed for every model, also for those that
are never promoted, would be missing for the models that are registered already, and could not be
changed later. The predictions of the evaluation are those of the package; the images are read again
for their facts.
"""

from typing import TYPE_CHECKING

from retrain import atomic
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from retrain.store import Store
from tasks.data.accepted_images import read_images
from tasks.data.evaluated import SPLIT, find_evaluated
from tasks.data.image_facts import is_sampled, measure, schema
from tasks.data.predictions import FEATURES, FILE

if TYPE_CHECKING:
    import pyarrow as pa


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
        with atomic.replacing(file) as aside:
            pq.write_table(table, aside)
    return pq.read_table(file, schema=schema())  # an old one has no features: they are null


def _of_test_split(store: Store, version: ModelVersion) -> "pa.Table | None":
    """A sample of the test split of the version's evaluation, with its predictions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = find_evaluated(store, version)
    if found is None:
        return None
    columns = ["sha256", "prediction", "confidence"]
    given = pq.read_table(found.predictions / FILE, columns=columns)
    rows = [
        row
        for row, sha256 in enumerate(given["sha256"].to_pylist())
        if is_sampled(sha256, len(given))
    ]
    answers = given.take(rows).to_pylist()
    features, kept = {}, found.predictions / FEATURES
    if kept.exists():  # not in an old evaluation
        features = {each["sha256"]: each["features"] for each in pq.read_table(kept).to_pylist()}
    measured = []
    images = read_images(found.source, found.validated, SPLIT, rows)
    for answer, image in zip(answers, images, strict=True):
        assert answer["sha256"] == image.sha256, image.path
        if facts := measure(image.data):
            said = {"label": answer["prediction"], "confidence": answer["confidence"]}
            measured.append(said | facts | {"features": features.get(image.sha256)})
    return pa.Table.from_pylist(measured, schema())
