"""The evaluation: its predictions and metrics."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import models
from models.network import FeatureExtractor
from retrain.registry import tracking, versions
from retrain.registry.versions import Candidate
from tasks.data import predictions
from tasks.data.image_facts import digest, image_id
from tasks.data.metrics import outcomes, summarise
from tasks.data.predictions import LEARNT
from tests.tasks.evaluate.conftest import ROWS, run
from tests.tasks.toy_model import (
    LABELS,
    pixels,
    plain_probabilities,
    write_custom,
    write_model,
    write_prepared,
    write_report,
)

OWN = [image_id(digest(pixels(1, seed)[0])) for seed in (1, 2)]  # of `write_prepared`


def test_predictions_and_metrics_are_those_of_the_network(scored):
    expected = plain_probabilities(scored.trained.folder / "model", pixels(ROWS), 16)
    table = pq.read_table(scored.folder / "predictions.parquet")
    found = {
        "path": [f"{row}.png" for row in range(ROWS)],
        "label": [LABELS[row % 4] for row in range(ROWS)],
        "prediction": [LABELS[best] for best in expected.argmax(1)],
        "confidence": expected.max(1).tolist(),
        "probabilities": expected.tolist(),
    }
    assert table.select([*found]).to_pydict() == found

    network = models.load(scored.trained.folder / "model").module
    _, features = FeatureExtractor(network).answer(torch.from_numpy(pixels(ROWS)), "fp32")
    kept = pq.read_table(scored.folder / "reference.parquet")
    assert kept["sha256"] == table["sha256"]  # fewer than are sampled
    assert np.abs(np.stack(kept["features"].to_numpy()) - features.numpy()).max() < 1e-5

    facts, right = scored.facts, expected.argmax(1) == np.arange(ROWS) % 4
    metrics = json.loads((scored.folder / "metrics.json").read_text())
    assert (metrics["accuracy"], metrics["rows"]) == (pytest.approx(right.mean()), ROWS)
    images = {"channels": 1, "resize": "crop", "resampling": "bicubic", "mean": [0.5], "std": [0.5]}
    known = {"metrics": metrics, "images": images | {"size": 8}, "precision": "fp32"}
    assert facts.items() >= (known | {"train": scored.trained.digest}).items()
    assert facts["package_bytes"] > 4 * 1000  # the weights alone
    [part] = facts["slices"]
    assert (part["value"], part["images"], part["accuracy"]) == ("8", ROWS, metrics["accuracy"])
    counted = json.loads((scored.folder / "classes.json").read_text())
    assert [row["label"] for row in counted["classes"]] == list(LABELS)
    pairs = pd.read_csv(scored.folder / "confusion.csv").to_dict("list")
    assert pairs == {"actual": found["label"], "predicted": found["prediction"]}


def test_a_class_that_the_model_does_not_know_is_counted_as_wrong(tmp_path):
    answers = np.array([[0.6, 0.1, 0.2, 0.1], [0.1, 0.6, 0.2, 0.1]], np.float32)
    described = pa.table(
        {
            "path": ["1", "2"],
            "sha256": ["1", "2"],
            "pixels": ["f" * 64] * 2,
            "label": ["bee", "dog"],
        }
    )
    file = tmp_path / predictions.FILE
    predictions.write(described, [answers], ("bee", "ant", "cat", "newt"), file)
    tally = predictions.read(tmp_path).tally(LABELS)
    metrics = summarise(tally)
    assert [row["label"] for row in outcomes(tally)["classes"]] == [*LABELS]
    assert (metrics["accuracy"], metrics["worst_class_recall"]) == (0.5, 0)
    assert metrics["log_loss"] == pytest.approx(-np.log([0.6, np.finfo(np.float32).eps]).mean())


def test_the_images_of_a_network_that_tells_no_features_are_kept_without(scored, tmp_path):
    trained = write_custom(tmp_path / "train", channels=1)
    write_report(trained, scored.project)
    folder, _ = run(tmp_path / "evaluate", trained, scored.images, scored.project)
    kept = pq.read_table(folder / "reference.parquet")
    assert (kept["features"].null_count, kept["confidence"].null_count) == (ROWS, 0)


@pytest.mark.parametrize(
    ("start", "export", "is_known"), [("w0", None, True), (None, "w0", True), ("gone", None, False)]
)
def test_what_a_version_has_learnt_includes_what_its_start_had(
    scored, tmp_path, start, export, is_known
):
    """Its start is another version, or an export of one."""
    candidate = Candidate(
        name="toy", weights="w0", package_digest="package", train_digest="t", family="vit",
        images={}, classes="classes", metrics={}, run_id=scored.run_id,
    )  # fmt: skip
    versions.register(scored.project, candidate, scored.package)
    images = write_prepared(tmp_path / "images", ROWS)
    pd.DataFrame({"pixels": ["f" * 64]}).to_parquet(images.folder / "train" / "rows.parquet")
    trained = write_model(tmp_path / "train", seed=1)
    trained = replace(trained, key=str(tmp_path), facts=trained.facts | {"start": start})
    file = trained.folder / "model" / models.MODEL
    saved = json.loads(file.read_text())
    saved["network"]["config"]["retrain_weights"] = export
    file.write_text(json.dumps(saved))
    write_report(trained, scored.project)
    folder, _ = run(tmp_path / "evaluate", trained, images, scored.project)
    learnt = folder / "report" / LEARNT
    # What is not known of the start is not said of the version.
    assert learnt.exists() is is_known
    assert not is_known or np.load(learnt).tolist() == sorted([*OWN, image_id("f" * 64)])


def test_the_scores_and_what_was_learnt_are_logged_with_the_run_of_the_training(scored):
    assert np.load(scored.folder / "report" / LEARNT).tolist() == sorted(OWN)
    client = tracking.client(scored.project)
    logged = client.get_run(scored.run_id).data.metrics
    assert logged["test_accuracy"] == scored.facts["metrics"]["accuracy"]
    files = [file.path for file in client.list_artifacts(scored.run_id, "evaluate")]
    assert files == ["evaluate/classes.json", f"evaluate/{LEARNT}"]
