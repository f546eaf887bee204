"""Pairs what two versions have answered in production for the same images."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from retrain.project import Project
from retrain.registry.versions import ModelVersion
from tasks.data import package
from tasks.data.champion import Registered
from tasks.data.metrics import METRICS
from tasks.data.predictions import NamedPredictions, image_id
from tasks.production import answers, labels

# A log has the probability of the label that was answered, not that of the true one.
MEASURED = tuple(name for name in METRICS if name != "log_loss")


def pairs(
    project: Project, models: Sequence[ModelVersion], logs: Sequence[Path]
) -> tuple[list[NamedPredictions], pa.Table]:
    """The logged answers of two versions, for the images that both have answered.

    Of an image that a version has answered several times, the first answer counts.

    Args:
        project: The clone, which has answers of its own, and the labels.
        models: The two versions.
        logs: The folders to which servers log.

    Returns:
        The answers of each version, and the images, in the order in which the first version has
        answered: `path` (the beginning of the SHA-256: a log does not have the name), `sha256` and
        `label`, which is null as long as nobody has said it. A wrong answer has no likelihood.

    Raises:
        UsageError: A folder does not exist, or a file in it is no log.
    """
    import pandas as pd

    a, b = (
        answers.read(project, model.name, logs, answers.by(model)).to_pandas() for model in models
    )
    a, b = (frame.drop_duplicates("sha256") for frame in (a, b))
    both = pd.merge(a, b, "inner", "sha256", suffixes=("_a", "_b"))
    known = pa.concat_tables(labels.read(project, model.name) for model in models).sort_by("added")
    label_of = dict(zip(known["sha256"].to_pylist(), known["label"].to_pylist(), strict=True))
    true = both["sha256"].map(label_of)
    images = pa.table(
        {"path": both["sha256"].str[:12], "sha256": both["sha256"], "label": true},
        pa.schema(dict.fromkeys(("path", "sha256", "label"), pa.string())),
    )
    ids = pa.array(map(image_id, images["sha256"].to_pylist()), pa.uint64())
    named = []
    for model, side in zip(models, ("a", "b"), strict=True):
        confidence = both[f"confidence_{side}"]
        rows = {
            "image": ids,
            "label": images["label"],
            "prediction": pa.array(both[f"label_{side}"], pa.string()),
            "confidence": pa.array(confidence, pa.float32()),
            "likelihood": pa.array(confidence.where(both[f"label_{side}"] == true), pa.float32()),
        }
        classes = tuple(package.classes_of(Registered(project, model).package))
        named.append(NamedPredictions(classes, pa.table(rows)))
    return named, images
