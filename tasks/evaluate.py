"""How good a model is on the test split, which took no part in its training.

The same function scores the challenger and the champion. A model's classes and the data's are
matched by name: the champion may have been trained when there were fewer of them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models
from retrain import registry, tracking
from retrain.artifact import Artifact, write_json
from retrain.step import REPORT, Facts, Step, Workspace
from retrain.workload import Evaluate
from tasks import plots
from tasks.inference import Job, probabilities
from tasks.metrics import Predictions, per_class, summarise
from tasks.prepared import ROWS, Prepared, open_prepared

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

SPLIT = "test"
ROWS_AT_ONCE = 65_536  # of probabilities in memory; also a row group of the Parquet file


def evaluate(
    evaluation: Evaluate, trained: Artifact, images: Artifact, workspace: Workspace
) -> Facts:
    """Predicts the test split and measures how good the predictions are.

    Writes `metrics.json`, `per_class.json`, `predictions.parquet` (path, sha256, label, prediction,
    confidence, probabilities in the order of the model's labels, which are in the schema's
    metadata) and `confusion.csv` (actual and predicted class of each row).

    Returns:
        `metrics`, by name; `weights`, the SHA-256 (hex) of the weights that were evaluated.
    """
    model = trained.folder / "model"
    prepared = open_prepared(images.folder)
    known = tuple(json.loads((model / models.LABELS).read_text(encoding="utf-8")))
    job = Job(model, images.folder, SPLIT, evaluation.batch_size, evaluation.precision)
    outputs = probabilities(job, ROWS_AT_ONCE)
    predictions = _keep_predictions(
        outputs, known, prepared, workspace.folder / "predictions.parquet"
    )
    metrics = summarise(predictions)
    write_json(workspace.folder / "metrics.json", metrics)
    write_json(workspace.folder / "per_class.json", per_class(predictions))
    _write_confusion(predictions, workspace.folder / "confusion.csv")
    history = trained.folder / REPORT / "history.json"
    plots.draw(
        predictions,
        prepared.split(SPLIT).images,
        json.loads(history.read_text()) if history.exists() else None,
        workspace.report,
    )
    _track(trained, metrics, workspace)
    return {"metrics": metrics, "weights": registry.digest_of_weights(model)}


def _keep_predictions(
    outputs: "Iterator[NDArray[np.float32]]",
    known: Sequence[str],
    prepared: Prepared,
    path: Path,
) -> Predictions:
    """Writes the predictions as they come, and keeps of each row what the metrics need.

    Args:
        outputs: float32 (n, classes of the model), in the order of the split.
        known: The model's labels.
        prepared: The data.
        path: The Parquet file.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    names = (*prepared.labels, *(name for name in known if name not in prepared.labels))
    # From a class of the model to its place among the names, and from one of the data to the
    # model's; -1 for one that the model does not know.
    to_name = np.array([names.index(name) for name in known])
    to_known = np.array([known.index(n) if n in known else -1 for n in prepared.labels])
    split = prepared.split(SPLIT)
    rows = parquet.read_table(split.folder / ROWS, columns=["path", "sha256", "label"])
    predicted = np.empty(len(split), np.int64)
    confidence = np.empty(len(split), np.float32)
    likelihood = np.empty(len(split), np.float32)
    schema = _schema(rows.schema, known)
    start = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for output in outputs:
            here = slice(start, start + len(output))
            start += len(output)
            best = output.argmax(axis=1)
            predicted[here] = to_name[best]
            confidence[here] = output.max(axis=1)
            true = to_known[split.labels[here]]
            given = np.take_along_axis(output, true[:, None], axis=1)[:, 0]
            likelihood[here] = np.where(true >= 0, given, 0)
            columns = [
                *rows.slice(here.start, len(output)).columns,
                pa.array(np.array(known, dtype=object)[best], pa.string()),
                pa.array(confidence[here]),
                pa.FixedSizeListArray.from_arrays(output.ravel(), len(known)).cast(
                    schema.field("probabilities").type
                ),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    assert start == len(split), (start, len(split))
    return Predictions(names, len(prepared.labels), split.labels, predicted, confidence, likelihood)


def _schema(rows: "pa.Schema", known: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa

    added = [
        pa.field("prediction", pa.string()),
        pa.field("confidence", pa.float32()),
        pa.field("probabilities", pa.list_(pa.float32())),
    ]
    return pa.schema([*rows, *added], metadata={"labels": json.dumps(list(known))})


def _write_confusion(predictions: Predictions, path: Path) -> None:
    """A row per image: what DVC's confusion plot counts."""
    import pyarrow as pa
    from pyarrow import csv

    def named(classes: "NDArray[np.int64]") -> Any:
        return pa.DictionaryArray.from_arrays(classes, list(predictions.names)).cast(pa.string())

    table = {"actual": named(predictions.labels), "predicted": named(predictions.predicted)}
    csv.write_csv(pa.table(table), path)


def _track(trained: Artifact, metrics: dict[str, float], workspace: Workspace) -> None:
    """Adds the scores and the plots to the training's MLflow run."""
    record = trained.folder / REPORT / "mlflow.json"
    if not record.exists():  # a champion that was taken from the registry
        return
    run_id = json.loads(record.read_text())["run_id"]
    named = {f"test_{name}": value for name, value in metrics.items()}
    tracking.log_metrics(workspace.project, run_id, named)
    tracking.log_artifacts(workspace.project, run_id, workspace.report, "evaluate")


STEP = Step(
    "evaluate",
    evaluate,
    reads=("evaluate",),
    inputs=("train", "preprocess"),
    libraries=("numpy", "pyarrow", "scikit-learn", "torch", "transformers"),
    runs_model=True,
)
