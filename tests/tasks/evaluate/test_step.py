"""The evaluation: its predictions and metrics."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import accuracy_score

import models
from models.network import FeatureExtractor
from retrain.registry import tracking, versions
from retrain.registry.versions import Candidate
from tasks.data.image_facts import digest, image_id
from tasks.data.predictions import LEARNT
from tasks.promote.package import write_package
from tests.tasks.evaluate.conftest import ROWS, run
from tests.tasks.toy_model import (
    LABELS,
    pixels,
    plain_probabilities,
    write_model,
    write_prepared,
    write_report,
)


def test_predictions_and_metrics_are_those_of_the_network(scored):
    expected = plain_probabilities(scored.trained.folder / "model", pixels(ROWS), 16)
    table = pq.read_table(scored.folder / "predictions.parquet")
    assert table["path"].to_pylist() == [f"{row}.png" for row in range(ROWS)]
    assert table["label"].to_pylist() == [LABELS[row % 4] for row in range(ROWS)]
    assert np.array_equal(np.stack(table["probabilities"].to_numpy()), expected)
    predicted = [LABELS[best] for best in expected.argmax(1)]
    assert table["prediction"].to_pylist() == predicted
    assert np.array_equal(table["confidence"].to_numpy(), expected.max(1))

    network = models.load(scored.trained.folder / "model").module
    _, features = FeatureExtractor(network).answer(torch.from_numpy(pixels(ROWS)), "fp32")
    kept = pq.read_table(scored.folder / "reference.parquet")
    assert kept["sha256"] == table["sha256"]  # fewer than are sampled
    assert np.abs(np.stack(kept["features"].to_numpy()) - features.numpy()).max() < 1e-5

    metrics = scored.facts["metrics"]
    assert metrics == json.loads((scored.folder / "metrics.json").read_text())
    accuracy = accuracy_score(np.arange(ROWS) % 4, expected.argmax(1))
    assert (metrics["accuracy"], metrics["rows"]) == (pytest.approx(accuracy), ROWS)
    assert (scored.facts["precision"], scored.facts["train"]) == ("fp32", scored.trained.digest)
    images = {"channels": 1, "resize": "crop", "resampling": "bicubic", "mean": [0.5], "std": [0.5]}
    assert scored.facts["images"] == images | {"size": 8}
    assert scored.facts["package_bytes"] > 4 * 1000  # the weights alone
    [part] = scored.facts["slices"]
    assert (part["value"], part["images"], part["accuracy"]) == ("8", ROWS, metrics["accuracy"])
    counted = json.loads((scored.folder / "classes.json").read_text())
    assert [row["label"] for row in counted["classes"]] == list(LABELS)
    pairs = zip(LABELS * 12, predicted, strict=False)
    lines = [f'"{actual}","{answer}"' for actual, answer in pairs]
    confusion = (scored.folder / "confusion.csv").read_text().splitlines()
    assert confusion == ['"actual","predicted"', *lines]


def test_a_class_that_the_model_does_not_know_is_counted_as_wrong(scored, tmp_path):
    known = ("ant", "cat", "bee", "newt")
    trained = write_model(tmp_path / "train", labels=known)
    write_report(trained, scored.project)
    folder, facts = run(tmp_path / "evaluate", trained, scored.images, scored.project)
    counted = json.loads((folder / "classes.json").read_text())["classes"]
    recall = {row["label"]: row["recall"] for row in counted}
    assert set(recall) == set(LABELS)
    assert recall["dog"] == facts["metrics"]["worst_class_recall"] == 0
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    right = [row["label"] == row["prediction"] for row in rows]
    assert facts["metrics"]["accuracy"] == pytest.approx(np.mean(right))
    likelihood = [
        row["probabilities"][known.index(row["label"])] if row["label"] in known else 0
        for row in rows
    ]
    least = np.finfo(np.float32).eps
    expected = -np.log(np.clip(likelihood, least, 1 - least)).mean()
    assert facts["metrics"]["log_loss"] == pytest.approx(expected)


def learnt_after(scored, folder, images, start=None, export=None) -> list[int] | None:
    """The images that a version has learnt which was trained from another one, or its export."""
    trained = write_model(folder / "train", seed=1)
    trained = replace(trained, key=str(folder), facts=trained.facts | {"start": start})
    file = trained.folder / "model" / models.MODEL
    saved = json.loads(file.read_text())
    saved["network"]["config"]["retrain_weights"] = export
    file.write_text(json.dumps(saved))
    write_report(trained, scored.project)
    output, _ = run(folder / "evaluate", trained, images, scored.project)
    learnt = output / "report" / LEARNT
    return np.load(learnt).tolist() if learnt.exists() else None


def test_what_a_version_has_learnt_includes_what_its_start_had(scored, tmp_path):
    own = [image_id(digest(pixels(1, seed)[0])) for seed in (1, 2)]
    assert np.load(scored.folder / "report" / LEARNT).tolist() == sorted(own)
    candidate = Candidate(
        name="toy", weights="w0", package_digest="package", train_digest="t", family="vit",
        images={}, classes="classes", metrics={}, run_id=scored.run_id,
    )  # fmt: skip
    package = tmp_path / "package"
    write_package(scored.trained.folder / "model", "fp32", dict.fromkeys(LABELS, 12), package)
    versions.register(scored.project, candidate, package)
    images = write_prepared(tmp_path / "images", ROWS)
    rows = pd.DataFrame({"pixels": ["f" * 64]})
    rows.to_parquet(images.folder / "train" / "rows.parquet")
    both = sorted([*own, image_id("f" * 64)])
    assert learnt_after(scored, tmp_path / "second", images, start="w0") == both
    assert learnt_after(scored, tmp_path / "exported", images, export="w0") == both
    # What is not known of the start is not said of the version.
    assert learnt_after(scored, tmp_path / "third", images, start="gone") is None


def test_the_scores_and_what_was_learnt_are_logged_with_the_run_of_the_training(scored):
    client = tracking.client(scored.project)
    logged = client.get_run(scored.run_id).data.metrics
    assert logged["test_accuracy"] == scored.facts["metrics"]["accuracy"]
    files = [file.path for file in client.list_artifacts(scored.run_id, "evaluate")]
    assert files == ["evaluate/classes.json", f"evaluate/{LEARNT}"]
