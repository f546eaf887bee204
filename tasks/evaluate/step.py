"""Measures how good a model is on the test split, which it was not trained on."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import models
from retrain import tracking
from retrain.atomic import write_json
from retrain.code import libraries_of
from retrain.registry import packages, versions
from retrain.runs import console
from retrain.step import REPORT, Chosen, Facts, Input, Workspace, step
from retrain.store import Artifact
from retrain.workload import Evaluate, Gate, Workload
from tasks.compute.asked import start_ahead
from tasks.compute.inference import PredictionJob, predict
from tasks.data import image_table, package, predictions, slices
from tasks.data.embeddings import prepared_by
from tasks.data.image_facts import WITH_FEATURES, is_sampled
from tasks.data.metrics import LOWER_IS_BETTER, outcomes, per_class, summarise
from tasks.data.predictions import LEARNT, NamedPredictions, image_id, learnt_images
from tasks.data.reference import write_reference
from tasks.data.shards import ROWS, PreparedSplit, open_prepared
from tasks.evaluate import plots, threshold

SPLIT = "test"
LEARNT_FROM = ("train", "val")


@step(
    inputs=lambda workload: ("train", prepared_by(workload), "validate"),
    reads=("evaluate", "gate.slices"),
    libraries=("numpy", "pyarrow", "torch", "transformers"),
    reports_with=("tasks.compute.asked", "tasks.evaluate.plots"),
    imports=("matplotlib.figure",),
)
def evaluate(
    evaluation: Evaluate,
    rules: Gate,
    trained: Artifact,
    images: Artifact,
    validated: Artifact,
    workspace: Workspace,
) -> Facts:
    """Predicts the test split and measures how good the predictions are.

    Writes `metrics.json`, `per_class.json`, `predictions.parquet`, `confusion.csv` (actual and
    predicted class of each row) and `slices.parquet` (`tasks/data/slices.py`); of a sample of the
    rows `features.parquet` and `reference.parquet`, which drift is measured against; and
    `report/classes.json`, as `metrics.outcomes` gives it, and the images that the model has learnt
    (`tasks/data/predictions.py`), for later comparisons with it.

    Returns:
        `metrics`, by name; `lower_is_better`, the names of those where lower is better; `slices`,
        those of `gate.slices`, with the accuracy in each; `weights`, the SHA-256 (hex) of the
        weights that were evaluated; `train`, the digest of the training; `precision`;
        `test_images`, SHA-256 (hex) over the set of the test images; `package`, the identity of the
        package that will give the same answers, and `package_bytes`, its size without code;
        `min_confidence`, the least confidence of an answer that it accepts, None if it does not
        say; and `images`, what images it takes.
    """
    start_ahead()  # for the champion, or for the check before a promotion
    model = trained.folder / "model"
    prepared = open_prepared(images.folder)
    described = image_table.read_split(validated.folder, SPLIT)
    _predict(evaluation, model, prepared.split(SPLIT), described, workspace.folder)
    write_reference(described, workspace.folder)
    named = predictions.read(workspace.folder)
    tally = named.tally(prepared.labels)
    min_confidence = threshold.chosen(evaluation, model, images)
    metrics = summarise(tally, min_confidence)
    write_json(workspace.folder / "metrics.json", metrics)
    write_json(workspace.folder / "per_class.json", per_class(tally))
    write_json(workspace.report / "classes.json", outcomes(tally))
    names, parts = slices.divide(described, rules.slices, tally.correct)
    pq.write_table(names, workspace.folder / slices.FILE)
    _write_pairs(named, workspace.folder)
    if (learnt := _learnt(trained, images.folder, workspace)) is not None:
        np.save(workspace.report / LEARNT, learnt)
    plots.draw(tally, prepared.pixels(SPLIT), workspace.report)
    _track(trained.folder / REPORT, metrics, workspace)
    return {
        "metrics": metrics,
        "slices": parts,
        "lower_is_better": LOWER_IS_BETTER,
        "weights": packages.digest_of_weights(model),
        "train": trained.digest,
        "precision": evaluation.precision,
        "test_images": sha256(np.unique(named.images).tobytes()).hexdigest(),
        "package": package.package_digest(
            model, evaluation.precision, package.code_of(model), min_confidence
        ),
        "min_confidence": min_confidence,
        "package_bytes": package.size_of(model),
        "images": package.images_of(model),
    }


def _write_pairs(named: NamedPredictions, folder: Path) -> None:
    """Writes a row per image: what DVC's confusion plot counts."""
    from pyarrow import csv

    pairs = named.rows.select(["label", "prediction"]).rename_columns(["actual", "predicted"])
    csv.write_csv(pairs, folder / "confusion.csv")


def _predict(
    evaluation: Evaluate, model: Path, split: PreparedSplit, described: pa.Table, folder: Path
) -> None:
    """Predicts the test split, and writes the predictions and the features."""
    labels = tuple(json.loads((model / models.LABELS).read_text(encoding="utf-8")))
    digests, size = described["sha256"].to_pylist(), WITH_FEATURES
    sampled = [row for row, each in enumerate(digests) if is_sampled(each, len(digests), size)]
    batch_size, precision = evaluation.batch_size, evaluation.precision
    job = PredictionJob(model, split.images, batch_size, precision, tuple(sampled))
    features: list[NDArray[np.float32]] = []

    def answers() -> Iterator[NDArray[np.float32]]:
        for probabilities, of_sampled in predict(job):
            if of_sampled is not None:
                features.append(of_sampled)
            show(len(probabilities))
            yield probabilities

    with console.counted("evaluate", len(digests)) as show:
        predictions.write(described, answers(), labels, folder / predictions.FILE)
    predictions.write_features([digests[row] for row in sampled], features, folder)


def _learnt(trained: Artifact, prepared: Path, workspace: Workspace) -> NDArray[np.uint64] | None:
    """The images that the model was trained or validated on, each once, in ascending order.

    Those that the version has learnt whose weights the training started from are among them, and so
    are those of its own start. None if it is not known what that version has learnt.
    """
    images: list[int] = []
    for split in LEARNT_FROM:
        rows = pq.read_table(prepared / split / ROWS, columns=["pixels"])
        images += map(image_id, rows["pixels"].to_pylist())
    learnt = np.unique(np.array(images, "<u8"))
    if (start := trained.facts.get("start")) is None:
        return learnt
    version = versions.find_by_weights(workspace.project, workspace.workload, start)
    file = version and learnt_images(workspace.project, version)
    return np.union1d(learnt, np.load(file, allow_pickle=False)) if file else None


def _track(report: Path, metrics: dict[str, float], workspace: Workspace) -> None:
    """Adds the scores and the plots to the training's MLflow run."""
    run_id = json.loads((report / "mlflow.json").read_text(encoding="utf-8"))["run_id"]
    named = {f"test_{name}": value for name, value in metrics.items()}
    tracking.log_metrics(workspace.project, run_id, named)
    tracking.log_artifacts(workspace.project, run_id, workspace.report, "evaluate")


@evaluate.chooses
def _dependencies(workload: Workload, *inputs: Input) -> Chosen:
    # The code that serves is part of the package's identity.
    settings = workload.model.model_dump(exclude={"family"})
    family_module, *user_modules = models.modules_of(workload.model.family, settings)
    return Chosen((family_module, *user_modules, "models.serving"), libraries_of(user_modules))
