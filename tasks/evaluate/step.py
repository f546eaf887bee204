"""Measures how good a model is on the test split, which it was not trained on."""

import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv

import models
from retrain.code import libraries_of
from retrain.file_io import write_json
from retrain.registry import lineage, tracking, versions
from retrain.runs import console
from retrain.step import REPORT, Chosen, Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import Evaluate, Gate, Workload
from tasks.compute import ray_data
from tasks.data import image_table, package, predictions, slices
from tasks.data.image_facts import image_id
from tasks.data.metrics import CLASSES, outcomes, summarise
from tasks.data.predictions import (
    GROUPS,
    LEARNT,
    WITH_FEATURES,
    is_sampled,
    learnt_images,
    write_reference,
)
from tasks.data.shards import ROWS, PreparedSplit, Shards, open_prepared, prepared_by

SPLIT = "test"
LEARNT_FROM = ("train", "val")
# The probabilities, float32 (images, classes), and the features, float32 (sampled images, D); None
# if there are none, or they are not known.
Answers = tuple[NDArray[np.float32], NDArray[np.float32] | None]


def dependencies(workload: Workload, *inputs: Artifact) -> Chosen:
    """The modules and libraries that the step uses because of the settings."""
    # The code that serves is part of the package's identity.
    settings = workload.model.model_dump(exclude={"family"})
    family_module, *user_modules = models.modules_of(workload.model.family, settings)
    return Chosen((family_module, *user_modules, "models.serving"), libraries_of(user_modules))


@step(
    inputs=lambda workload: ("train", prepared_by(workload), "validate"),
    reads=("evaluate", "gate.slices"),
    libraries=("numpy", "pyarrow", "torch", "transformers"),
    chosen=dependencies,
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

    Writes `metrics.json`, `classes.json` (as `metrics.outcomes` gives it), `predictions.parquet`,
    `confusion.csv` (actual and predicted class of each row), `groups.npy` (which of the images
    belong together) and `slices.parquet` (`tasks/data/slices.py`); of a sample of the rows
    `reference.parquet`, which drift is measured against; and below `report/` the images that the
    model has learnt (`tasks/data/predictions.py`), for later comparisons with it.

    Returns:
        `metrics`, by name; `slices`, those of `gate.slices`, with the accuracy in each; `train`,
        the digest of the training; `precision`; `test_images`, SHA-256 (hex) over the set of the
        test images; `package`, the identity of the package that will give the same answers, and
        `package_bytes`, its size without code; and `images`, what images it takes.
    """
    model = trained.folder / "model"
    prepared = open_prepared(images.folder)
    described = image_table.read_split(validated.folder, SPLIT)
    features = _predict(evaluation, model, prepared.split(SPLIT), described, workspace.folder)
    write_reference(described, features, workspace.folder)
    named = predictions.read(workspace.folder)
    tally = named.tally(prepared.labels)
    metrics = summarise(tally)
    write_json(workspace.folder / "metrics.json", metrics)
    write_json(workspace.folder / CLASSES, outcomes(tally))
    names, parts = slices.divide(described, rules.slices, tally.correct)
    pq.write_table(names, workspace.folder / slices.FILE)
    np.save(workspace.folder / GROUPS, described["tie"].to_numpy())
    # A row per image: what DVC's confusion plot counts.
    pairs = named.rows.select(["label", "prediction"]).rename_columns(["actual", "predicted"])
    csv.write_csv(pairs, workspace.folder / "confusion.csv")
    if (learnt := _learnt(trained, images.folder, workspace)) is not None:
        np.save(workspace.report / LEARNT, learnt)
    _track(trained.folder / REPORT, metrics, validated, workspace)
    return {
        "metrics": metrics,
        "slices": parts,
        "train": trained.digest,
        "precision": evaluation.precision,
        "test_images": sha256(np.unique(named.images).tobytes()).hexdigest(),
        "package": package.package_digest(model, evaluation.precision, package.code_of(model)),
        "package_bytes": package.size_of(model),
        "images": package.images_of(model),
    }


def _predict(
    evaluation: Evaluate, model: Path, split: PreparedSplit, described: pa.Table, folder: Path
) -> dict[str, NDArray[np.float32]]:
    """Predicts the test split and writes the predictions; gives the features of a sample.

    They are by the SHA-256 of the image; there are none if the last layer is not known.
    """
    labels = tuple(json.loads((model / models.LABELS).read_text(encoding="utf-8")))
    digests = described["sha256"].to_pylist()
    count = len(digests)
    sampled = [row for row in range(count) if is_sampled(digests[row], count, WITH_FEATURES)]
    batch_size, precision = evaluation.batch_size, evaluation.precision
    features: list[NDArray[np.float32]] = []

    def answers() -> Iterator[NDArray[np.float32]]:
        answered = predict(model, split.images, batch_size, precision, sampled)
        for probabilities, of_sampled in answered:
            if of_sampled is not None:
                features.extend(of_sampled)
            show(len(probabilities))
            yield probabilities

    with console.counted("evaluate", count) as show:
        predictions.write(described, answers(), labels, folder / predictions.FILE)
    return dict(zip((digests[row] for row in sampled), features, strict=False))


def predict(
    model: Path, images: Shards, batch_size: int, precision: str, sampled: Sequence[int] = ()
) -> Iterator[Answers]:
    """Runs a model over a split, on all GPUs, or on the CPUs if there are none.

    The images are never in memory as a whole. Threads of this process and a cluster give the same
    result: the rows of a forward pass depend only on the batch size, and one thread calculates each
    pass.

    Args:
        model: A folder that `models.save` wrote.
        images: The prepared images of the split.
        batch_size: Images per forward pass.
        precision: `fp32` or `bf16`, of the matrix products.
        sampled: The rows of which the features are wanted, too, in ascending order.

    Yields:
        The answers for each batch, in the order of the split.
    """

    def load(device: str) -> Callable[[int], Answers]:
        import torch

        from models.network import FeatureExtractor

        network = models.load(model).module.to(device)
        network.prefer_attention(torch.device(device).type, precision)
        observed = FeatureExtractor(network)

        def answer(first: int) -> Answers:
            torch.set_num_threads(ray_data.THREADS)
            rows = np.arange(first, min(first + batch_size, len(images)))
            pixels = torch.from_numpy(images[rows]).to(device)
            probabilities, features = observed.answer(pixels, precision)
            wanted = [row - first for row in sampled if first <= row <= rows[-1]]
            known = features[wanted].cpu().numpy() if features is not None and wanted else None
            return probabilities.cpu().numpy(), known

        return answer

    batches = range(0, len(images), batch_size)
    seconds = len(images) * ray_data.SECONDS_PER_IMAGE
    return ray_data.each(load, batches, seconds=seconds, on_gpus=True)


def _learnt(trained: Artifact, prepared: Path, workspace: Workspace) -> NDArray[np.uint64] | None:
    """The images that the model was trained or validated on, each once, in ascending order.

    Those that the version has learnt whose weights the training started from, or whose export is
    its `model.pretrained`, are among them, and so are those of its own start. None if it is not
    known what that version has learnt.
    """
    images: list[int] = []
    for split in LEARNT_FROM:
        rows = pq.read_table(prepared / split / ROWS, columns=["pixels"])
        images += map(image_id, rows["pixels"].to_pylist())
    learnt = np.unique(np.array(images, "<u8"))
    saved = json.loads((trained.folder / "model" / models.MODEL).read_text(encoding="utf-8"))
    start = trained.facts.get("start") or saved["network"]["config"].get("retrain_weights")
    if start is None:
        return learnt
    version = versions.find_by_weights(workspace.project, workspace.workload, start)
    file = version and learnt_images(workspace.project, version)
    return np.union1d(learnt, np.load(file, allow_pickle=False)) if file else None


def _track(
    report: Path, metrics: dict[str, float], validated: Artifact, workspace: Workspace
) -> None:
    """Adds to the training's MLflow run the scores, those of the classes, and what was learnt.

    And the ties of images that look the same, if they are kept together.
    """
    project = workspace.project
    run_id = json.loads((report / "mlflow.json").read_text(encoding="utf-8"))["run_id"]
    named = {f"test_{name}": value for name, value in metrics.items()}
    if tracking.log_metrics(project, run_id, named):
        ties = validated.folder / REPORT / lineage.TIES
        for file in (workspace.folder / CLASSES, workspace.report / LEARNT, ties):
            if file.exists():
                tracking.client(project).log_artifact(run_id, str(file), "evaluate")
