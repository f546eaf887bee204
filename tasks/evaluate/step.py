"""Measures how good a model is on the test split, which it was not trained on."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import models
from retrain import tracking
from retrain.code import libraries_of
from retrain.registry import packages
from retrain.step import REPORT, Chosen, Facts, Input, Step, Workspace
from retrain.store import Artifact
from retrain.workload import Evaluate, Workload
from tasks.compute.inference import PredictionJob, probabilities
from tasks.data import package
from tasks.data.embeddings import prepared_by
from tasks.data.image_facts import has_features
from tasks.data.json_file import write_json
from tasks.data.metrics import (
    LOWER_IS_BETTER,
    Confusion,
    Tally,
    outcomes,
    per_class,
    summarise,
)
from tasks.data.predictions import LEARNT, image_id
from tasks.data.shards import ROWS, PreparedSplit, open_prepared
from tasks.evaluate import plots, predictions
from tasks.evaluate.predictions import Answers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPLIT = "test"
LEARNT_FROM = ("train", "val")
# Rows in memory at a time, and in a row group of the Parquet file; fewer if there are many classes.
MAX_ROWS, MAX_PROBABILITIES = 4096, 1 << 21


def evaluate(
    evaluation: Evaluate, trained: Artifact, images: Artifact, workspace: Workspace
) -> Facts:
    """Predicts the test split and measures how good the predictions are.

    Writes `metrics.json`, `per_class.json`, `predictions.parquet`, `confusion.csv` (actual and
    predicted class of each row), and `features.parquet`, of a sample of the rows; and
    `report/classes.json`, as `metrics.outcomes` gives it, and `report/learnt_images.npy`, for later
    comparisons with this model.

    Returns:
        `metrics`, by name; `lower_is_better`, the names of those where lower is better; `weights`,
        the SHA-256 (hex) of the weights that were evaluated; `train`, the digest of the training;
        `precision`; `test_images`, SHA-256 (hex) over those of the test images; `package`, the
        identity of the package that will give the same answers, and `package_bytes`, its size
        without code; and `images`, what images it takes.
    """
    from pyarrow import csv, schema, string

    model = trained.folder / "model"
    prepared = open_prepared(images.folder)
    split = prepared.split(SPLIT)
    known = tuple(json.loads((model / models.LABELS).read_text(encoding="utf-8")))
    chunk = max(1, min(MAX_ROWS, MAX_PROBABILITIES // len(known)))
    sampled = dict(_sampled(split))
    job = PredictionJob(
        model, images.folder, SPLIT, evaluation.batch_size, evaluation.precision, tuple(sampled)
    )
    features: list[NDArray[np.float32]] = []
    answers = _answers(probabilities(job, chunk, features), chunk, split)
    names = predictions.all_names(prepared.labels, known)
    tally, confusion = Tally(names, len(prepared.labels)), Confusion(names)
    examples = plots.Examples(len(split))
    digest = sha256()
    pair = schema({"actual": string(), "predicted": string()})
    # A row per image: what DVC's confusion plot counts.
    with csv.CSVWriter(workspace.folder / "confusion.csv", pair) as pairs:
        written = predictions.write(answers, known, prepared.labels, workspace.folder)
        for rows, counted in written:
            digest.update("".join(rows["sha256"].to_pylist()).encode())
            examples.add(tally.rows, counted)
            tally.add(counted)
            confusion.add(counted)
            pairs.write_batch(rows.select(["label", "prediction"]).rename_columns(pair.names))
    assert tally.rows == len(split), (tally.rows, len(split))
    predictions.write_features(list(sampled.values()), features, workspace.folder)
    metrics = summarise(tally)
    write_json(workspace.folder / "metrics.json", metrics)
    write_json(workspace.folder / "per_class.json", per_class(tally))
    write_json(workspace.report / "classes.json", outcomes(tally))
    _write_learnt(images.folder, workspace.report / LEARNT)
    report = trained.folder / REPORT
    history = json.loads((report / "history.json").read_text(encoding="utf-8"))
    plots.draw(tally, confusion, examples, prepared.pixels(SPLIT), history, workspace.report)
    _track(report, metrics, workspace)
    return {
        "metrics": metrics,
        "lower_is_better": LOWER_IS_BETTER,
        "weights": packages.digest_of_weights(model),
        "train": trained.digest,
        "precision": evaluation.precision,
        "test_images": digest.hexdigest(),
        "package": package.package_digest(model, evaluation.precision, package.code_of(model)),
        "package_bytes": package.size_of(model),
        "images": package.images_of(model),
    }


def _answers(
    outputs: "Iterator[NDArray[np.float32]]", chunk: int, split: PreparedSplit
) -> Iterator[Answers]:
    """Joins the probabilities with the rows they belong to.

    Args:
        outputs: float32 (n, classes of the model), in the order of the split.
        chunk: The rows of each; the last may have fewer.
        split: The data.
    """
    from pyarrow import parquet

    # By default a whole row group is read at once, and the next one in advance.
    options = {"pre_buffer": False, "buffer_size": 1 << 20}
    with parquet.ParquetFile(split.folder / ROWS, **options) as origin:
        described = origin.iter_batches(chunk, columns=["path", "sha256", "label"])
        for output, rows in zip(outputs, described, strict=True):
            rows = rows.select(["path", "sha256", "label"])
            yield Answers(rows, output.argmax(axis=1), output)


def _sampled(split: PreparedSplit) -> Iterator[tuple[int, str]]:
    """The rows of which the features are kept, each with the SHA-256 of its image."""
    from pyarrow import parquet

    first, total = 0, len(split)
    with parquet.ParquetFile(split.folder / ROWS) as origin:
        for batch in origin.iter_batches(MAX_ROWS, columns=["sha256"]):
            for row, sha256 in enumerate(batch["sha256"].to_pylist(), first):
                if has_features(sha256, total):
                    yield row, sha256
            first += len(batch)


def _write_learnt(prepared: Path, file: Path) -> None:
    """Writes the images that the model was trained or validated on, in ascending order."""
    import numpy as np
    from pyarrow import parquet

    images: list[int] = []
    for split in LEARNT_FROM:
        rows = parquet.read_table(prepared / split / ROWS, columns=["sha256"])
        images += map(image_id, rows["sha256"].to_pylist())
    np.save(file, np.unique(np.array(images, np.uint64)))


def _track(report: Path, metrics: dict[str, float], workspace: Workspace) -> None:
    """Adds the scores and the plots to the training's MLflow run."""
    run_id = json.loads((report / "mlflow.json").read_text(encoding="utf-8"))["run_id"]
    named = {f"test_{name}": value for name, value in metrics.items()}
    tracking.log_metrics(workspace.project, run_id, named)
    tracking.log_artifacts(workspace.project, run_id, workspace.report, "evaluate")


def _chosen(workload: Workload, trained: Input, images: Input) -> Chosen:
    # The code that serves is part of the package's identity.
    settings = workload.model.model_dump(exclude={"family"})
    own, *users = models.modules_of(workload.model.family, settings)
    return Chosen((own, *users, "models.serving"), libraries_of(users))


STEP = Step(
    "evaluate",
    evaluate,
    reads=("evaluate",),
    inputs=lambda workload: ("train", prepared_by(workload)),
    libraries=("numpy", "pyarrow", "torch", "transformers"),
    chosen=_chosen,
    reports_with=("tasks.evaluate.plots",),
)
