"""The answers of `predict` and of a server, and labels that come later, give a verdict."""

import json

import pyarrow.parquet as pq
import pytest

from retrain.project import Project
from retrain.registry import versions


@pytest.mark.slow
def test_labels_that_come_later_say_whether_the_champion_is_worse(clone, first, tmp_path):
    [test] = (clone.root / ".retrain/store/pull").glob("*/data/test.parquet")
    output = tmp_path / "out.parquet"
    clone.json("predict", "vit", "--input", str(test), "--output", str(output))

    truth = pq.read_table(next(clone.root.glob(".retrain/store/evaluate/*/predictions.parquet")))
    labels = truth.select(["sha256", "label"])
    pq.write_table(labels, tmp_path / "labels.parquet")
    added = clone.json("drift", "vit", "--labels", str(tmp_path / "labels.parquet"))
    found = added["production"]
    assert (found["images"], found["labelled"], found["worse"]) == (360, 360, False)
    assert abs(found["difference"]) < 1e-9

    # A server has answered most of what came later wrong.
    model = versions.champion(Project(clone.root), "vit")
    rows = [
        {"sha256": f"{number:064}", "label": "1", "confidence": 0.9,
         "weights": model.weights, "time": "2026-01-05T00:00:00+00:00"}
        for number in range(600)
    ]  # fmt: skip
    (tmp_path / "log").mkdir()
    log = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "log" / "1.jsonl").write_text(log)
    (tmp_path / "late.csv").write_text(
        "sha256,label\n" + "".join(f"{row['sha256']},0\n" for row in rows)
    )
    late = ("--labels", str(tmp_path / "late.csv"))
    refused = clone.retrain("drift", "vit", *late, code=2)
    assert "vit was asked for none of its images (600)" in refused.stderr
    document = clone.json("drift", "vit", *late, "--answers", str(tmp_path / "log"))
    assert document["state"] == "Worse"
    assert "worse than production.max_drop allows" in document["outcome"]
    assert "Worse" in (clone.root / "reports/vit/production.html").read_text(encoding="utf-8")
    refused = clone.retrain("drift", "vit", "--answers", str(tmp_path / "gone"), code=2)
    assert "there is no such folder" in refused.stderr

    # Another champion comes before it has labels.
    another = clone.train("--set", "train.lr=0.0029")["model"]["version"]
    document = clone.json("drift", "vit", "--version", str(another))
    assert document["production"]["instead"] == model.version
    said = "An earlier version has labels: retrain drift vit --version 1"
    assert document["outcome"].endswith(said)
