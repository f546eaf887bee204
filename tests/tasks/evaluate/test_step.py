"""The evaluation: its predictions and metrics."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import accuracy_score

import models
from models.network import FeatureExtractor
from retrain.outputs import list_files
from retrain.project import Project
from retrain.registry import tracking, versions
from retrain.registry.versions import Candidate, ModelVersion
from retrain.store import Artifact
from retrain.workload import Evaluate, Gate
from tasks.data.image_facts import digest, image_id
from tasks.data.predictions import LEARNT, learnt_images
from tasks.evaluate.step import evaluate
from tasks.promote.package import write_package
from tests import templates
from tests.tasks.toy_model import (
    LABELS,
    described,
    pixels,
    plain_probabilities,
    workspace,
    write_model,
    write_prepared,
    write_report,
)

ROWS = 45
FP32 = Evaluate(batch_size=16, precision="fp32")


@pytest.fixture(scope="module")
def scored(tmp_path_factory, ray_session):
    """A model as `train` leaves it, with its history and its MLflow run, and its evaluation."""
    root = tmp_path_factory.mktemp("scored")
    project = Project(root)
    templates.place_mlflow_database(root)
    trained = write_model(root / "train")
    run_id = write_report(trained, project)
    images = write_prepared(root / "images", ROWS)
    folder, facts = run(root / "evaluate", trained, images, project)
    return SimpleNamespace(
        trained=trained, images=images, folder=folder, facts=facts, run_id=run_id, project=project
    )


def run(folder: Path, trained: Artifact, images: Artifact, project: Project):
    place = workspace(folder, project.root)
    rules = Gate(slices=("width",))
    return place.folder, evaluate(FP32, rules, trained, images, described(images), place)


def test_predictions_and_metrics_are_those_of_the_network(scored):
    expected = plain_probabilities(scored.trained.folder / "model", pixels(ROWS), 16)

    table = pq.read_table(scored.folder / "predictions.parquet")
    assert table["path"].to_pylist() == [f"{row}.png" for row in range(ROWS)]
    assert table["label"].to_pylist() == [LABELS[row % 4] for row in range(ROWS)]
    assert np.array_equal(np.stack(table["probabilities"].to_numpy()), expected)
    assert table["prediction"].to_pylist() == [LABELS[best] for best in expected.argmax(1)]
    assert np.array_equal(table["confidence"].to_numpy(), expected.max(1))
    assert json.loads(table.schema.metadata[b"labels"]) == list(LABELS)

    network = models.load(scored.trained.folder / "model").module
    _, features = FeatureExtractor(network).answer(torch.from_numpy(pixels(ROWS)), "fp32")
    kept = pq.read_table(scored.folder / "reference.parquet")
    assert kept["sha256"] == table["sha256"]  # fewer than are sampled
    assert np.abs(np.stack(kept["features"].to_numpy()) - features.numpy()).max() < 1e-5

    metrics = scored.facts["metrics"]
    assert metrics == json.loads((scored.folder / "metrics.json").read_text())
    accuracy = accuracy_score(np.arange(ROWS) % 4, expected.argmax(1))
    assert metrics["accuracy"] == pytest.approx(accuracy)
    assert metrics["rows"] == ROWS
    [part] = scored.facts["slices"]
    assert (part["value"], part["images"], part["accuracy"]) == ("8", ROWS, metrics["accuracy"])
    counted = json.loads((scored.folder / "classes.json").read_text())
    assert [row["label"] for row in counted["classes"]] == list(LABELS)
    lines = (scored.folder / "confusion.csv").read_text().splitlines()
    assert lines[0] == '"actual","predicted"'
    assert lines[1] == f'"ant","{LABELS[expected[0].argmax()]}"'
    assert len(lines) == ROWS + 1


def test_what_will_be_served_is_named_by_all_that_it_answers_with(scored, tmp_path):
    assert scored.facts["precision"] == "fp32"
    assert scored.facts["train"] == scored.trained.digest
    images = {"channels": 1, "resize": "crop", "resampling": "bicubic", "mean": [0.5], "std": [0.5]}
    assert scored.facts["images"] == images | {"size": 8}
    assert scored.facts["package_bytes"] > 4 * 1000  # the weights alone
    place = workspace(tmp_path / "bf16", scored.project.root)
    coarse = Evaluate(batch_size=16, precision="bf16")
    facts = evaluate(coarse, Gate(), scored.trained, scored.images, described(scored.images), place)
    assert facts["package"] != scored.facts["package"]


def test_a_class_that_the_model_does_not_know_is_counted_as_wrong(scored, tmp_path):
    known = ("ant", "cat", "bee", "newt")
    trained = write_model(tmp_path / "train", labels=known)
    write_report(trained, scored.project)
    folder, facts = run(tmp_path / "evaluate", trained, scored.images, scored.project)
    counted = json.loads((folder / "classes.json").read_text())["classes"]
    recall = {row["label"]: row["recall"] for row in counted}
    assert set(recall) == set(LABELS)
    assert recall["dog"] == 0
    assert facts["metrics"]["worst_class_recall"] == 0
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert facts["metrics"]["accuracy"] == pytest.approx(right / ROWS)
    likelihood = [
        row["probabilities"][known.index(row["label"])] if row["label"] in known else 0
        for row in rows
    ]
    smallest = np.finfo(np.float32).eps
    expected = -np.log(np.clip(likelihood, smallest, 1 - smallest)).mean()
    assert facts["metrics"]["log_loss"] == pytest.approx(expected)


def version_of(scored, weights: str, run_id: str) -> ModelVersion:
    """A registered version with certain weights."""
    candidate = Candidate(
        name="toy", weights=weights, package_digest="package", train_digest=weights, train_key=None,
        start=None, family="vit", images={}, classes="classes", metrics={}, data=None, commit=None,
        run_id=run_id,
    )  # fmt: skip
    package = scored.project.root / f"package-{weights}"
    write_package(scored.trained.folder / "model", "fp32", dict.fromkeys(LABELS, 12), package)
    return versions.register(scored.project, candidate, package)


def version_after(scored, folder, seed, start, images) -> tuple[ModelVersion, list[int] | None]:
    """A version trained from another one's weights, and the images that it has learnt."""
    trained = write_model(folder / "train", seed=seed)
    trained = replace(trained, key=f"key{seed}", facts=trained.facts | {"start": start})
    run_id = write_report(trained, scored.project)
    output, _ = run(folder / "evaluate", trained, images, scored.project)
    file = output / "report" / LEARNT
    version = version_of(scored, f"w{seed}", run_id)
    return version, np.load(file).tolist() if file.exists() else None


def test_what_a_version_has_learnt_includes_what_its_start_had(scored, tmp_path):
    own = [image_id(digest(pixels(1, seed)[0])) for seed in (1, 2)]
    assert np.load(scored.folder / "report" / LEARNT).tolist() == sorted(own)
    version_of(scored, "w0", scored.run_id)
    images = write_prepared(tmp_path / "images", ROWS)
    rows = pd.DataFrame({"pixels": ["f" * 64]})
    rows.to_parquet(images.folder / "train" / "rows.parquet")
    _, second = version_after(scored, tmp_path / "second", 1, "w0", images)
    _, third = version_after(scored, tmp_path / "third", 2, "w1", scored.images)
    assert second == third == sorted([*own, image_id("f" * 64)])
    exported = write_model(tmp_path / "exported" / "train", seed=1)
    file = exported.folder / "model" / models.MODEL
    saved = json.loads(file.read_text())
    saved["network"]["config"]["retrain_weights"] = "w0"  # as one pretrained by an export has it
    file.write_text(json.dumps(saved))
    write_report(exported, scored.project)
    output, _ = run(tmp_path / "exported" / "evaluate", exported, images, scored.project)
    assert np.load(output / "report" / LEARNT).tolist() == second
    # What is not known of the start is not said of the version.
    version, learnt = version_after(scored, tmp_path / "fourth", 3, "gone", scored.images)
    assert learnt is None
    assert learnt_images(scored.project, version) is None


def test_the_same_model_gives_the_same_bytes_again_and_is_logged(scored, tmp_path):
    folder, facts = run(tmp_path / "again", scored.trained, scored.images, scored.project)
    assert facts == scored.facts
    before, after = (
        [file for file in list_files(each) if not file["path"].startswith("report/")]
        for each in (scored.folder, folder)
    )
    assert before == after
    client = tracking.client(scored.project)
    logged = client.get_run(scored.run_id).data.metrics
    assert logged["test_accuracy"] == scored.facts["metrics"]["accuracy"]
    files = [file.path for file in client.list_artifacts(scored.run_id, "evaluate")]
    assert files == ["evaluate/classes.json", f"evaluate/{LEARNT}"]
