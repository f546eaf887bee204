"""How good a model is on the test split, which took no part in its training.

The same function scores the challenger and the champion. A model's classes and the data's are
matched by name: the champion may have been trained when there were fewer of them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import models
from retrain import tracking
from retrain.project import Project
from retrain.registry import versions
from retrain.step import REPORT, Chosen, Facts, Input, Step, Workspace
from retrain.store import Artifact
from retrain.workload import Evaluate, Workload, did_you_mean
from tasks.compute.inference import PredictionJob, probabilities
from tasks.data.json_file import write_json
from tasks.data.shards import ROWS, Prepared, open_prepared
from tasks.evaluate import plots
from tasks.evaluate.metrics import METRICS, Predictions, Tally, per_class, summarise

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

SPLIT = "test"
PREDICTIONS = "predictions.parquet"
# In memory at a time, and a row group of the Parquet file: so many rows, fewer of many classes.
MAX_ROWS, MAX_PROBABILITIES = 4096, 1 << 21


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
    chunk = max(1, min(MAX_ROWS, MAX_PROBABILITIES // len(known)))
    job = PredictionJob(model, images.folder, SPLIT, evaluation.batch_size, evaluation.precision)
    outputs = probabilities(job, chunk)
    tally, examples = _count(outputs, chunk, known, prepared, workspace.folder)
    metrics = summarise(tally)
    write_json(workspace.folder / "metrics.json", metrics)
    write_json(workspace.folder / "per_class.json", per_class(tally))
    history = trained.folder / REPORT / "history.json"
    plots.draw(
        tally,
        examples,
        prepared.split(SPLIT).images,
        json.loads(history.read_text()) if history.exists() else None,
        workspace.report,
    )
    _track(trained, metrics, workspace)
    return {"metrics": metrics, "weights": versions.digest_of_weights(model)}


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds rules of the gate about metrics that there are not."""
    named = {
        **{f"gate.min.{name}": name for name in workload.gate.min},
        **{f"gate.max.{name}": name for name in workload.gate.max},
        "gate.metric": workload.gate.metric,
    }
    for place, name in named.items():
        if name not in METRICS:
            yield f"{place}: no metric {name!r}.{did_you_mean(name, METRICS)}"


def _count(
    outputs: "Iterator[NDArray[np.float32]]",
    chunk: int,
    known: Sequence[str],
    prepared: Prepared,
    folder: Path,
) -> tuple[Tally, plots.Examples]:
    """Writes the predictions as they come, and keeps what the metrics and the plots need.

    Args:
        outputs: float32 (n, classes of the model), in the order of the split.
        chunk: Their length; the last may be shorter.
        known: The model's labels.
        prepared: The data.
        folder: Where `predictions.parquet` and `confusion.csv` go.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    names = tuple(dict.fromkeys((*prepared.labels, *known)))
    # From a class of the model to its place among the names, and from one of the data to the
    # model's; -1 for one that the model does not know.
    place, place_known = (
        {name: index for index, name in enumerate(each)} for each in (names, known)
    )
    to_name = np.array([place[name] for name in known])
    to_known = np.array([place_known.get(name, -1) for name in prepared.labels])
    split = prepared.split(SPLIT)
    tally, examples = Tally(names, len(prepared.labels)), plots.Examples(len(split))
    schema = _schema(known)
    pair = pa.schema({"actual": pa.string(), "predicted": pa.string()})
    with (
        # By default a whole row group is read at once, and the next one ahead.
        parquet.ParquetFile(split.folder / ROWS, pre_buffer=False, buffer_size=1 << 20) as origin,
        parquet.ParquetWriter(folder / PREDICTIONS, schema) as writer,
        # A row per image: what DVC's confusion plot counts.
        csv.CSVWriter(folder / "confusion.csv", pair) as confusion,
    ):
        described = origin.iter_batches(chunk, columns=["path", "sha256", "label"])
        for output, rows in zip(outputs, described, strict=True):
            labels = split.labels[tally.rows : tally.rows + len(output)]
            best, true = output.argmax(axis=1), to_known[labels]
            likelihood = np.take_along_axis(output, true[:, None], axis=1)[:, 0]
            predictions = Predictions(
                labels, to_name[best], output.max(axis=1), np.where(true >= 0, likelihood, 0)
            )
            examples.add(tally.rows, predictions)
            tally.add(predictions)
            prediction = pa.DictionaryArray.from_arrays(best, list(known)).cast(pa.string())
            probabilities = pa.FixedSizeListArray.from_arrays(output.ravel(), len(known))
            columns = [
                *rows.columns,
                prediction,
                pa.array(predictions.confidence),
                probabilities.cast(schema.field("probabilities").type),
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            confusion.write_batch(
                pa.RecordBatch.from_arrays([rows["label"], prediction], schema=pair)
            )
    assert tally.rows == len(split), (tally.rows, len(split))
    return tally, examples


def _schema(known: Sequence[str]) -> "pa.Schema":
    """The columns of the predictions."""
    import pyarrow as pa

    columns = {
        "path": pa.string(),
        "sha256": pa.string(),
        "label": pa.string(),
        "prediction": pa.string(),
        "confidence": pa.float32(),
        "probabilities": pa.list_(pa.float32()),
    }
    return pa.schema(columns, metadata={"labels": json.dumps(list(known))})


def _track(trained: Artifact, metrics: dict[str, float], workspace: Workspace) -> None:
    """Adds the scores and the plots to the training's MLflow run."""
    record = trained.folder / REPORT / "mlflow.json"
    if not record.exists():  # a champion that was taken from the registry
        return
    run_id = json.loads(record.read_text())["run_id"]
    named = {f"test_{name}": value for name, value in metrics.items()}
    tracking.log_metrics(workspace.project, run_id, named)
    tracking.log_artifacts(workspace.project, run_id, workspace.report, "evaluate")


def _chosen(workload: Workload, trained: Input, images: Input) -> Chosen:
    return Chosen(modules=(f"models.{workload.model.family}",))


STEP = Step(
    "evaluate",
    evaluate,
    reads=("evaluate",),
    inputs=("train", "preprocess"),
    libraries=("numpy", "pyarrow", "torch", "transformers"),
    chosen=_chosen,
    reports_with=("tasks.evaluate.plots",),
    check=check,
)
