import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.metrics import accuracy_score

from retrain import tracking
from retrain.artifact import list_files
from retrain.workload import Evaluate
from tasks.evaluate import evaluate
from tests.tasks.trained import (
    LABELS,
    pixels,
    plain_probabilities,
    workspace,
    write_model,
    write_prepared,
)

pytestmark = pytest.mark.usefixtures("ray_session")
ROWS = 45
HISTORY = [
    {
        "epoch": epoch,
        "train_loss": 2 / epoch,
        "val_loss": 2.1 / epoch,
        "val_accuracy": 1 - 1 / epoch,
    }
    for epoch in range(1, 4)
]


def run(tmp_path: Path, trained, images, name: str = "evaluate"):
    place = workspace(tmp_path / name, tmp_path)
    return place.folder, evaluate(Evaluate(batch_size=16), trained, images, place)


@pytest.fixture
def images(tmp_path):
    return write_prepared(tmp_path / "images", ROWS)


def test_predictions_and_metrics_are_those_of_the_network(tmp_path, images):
    trained = write_model(tmp_path / "train")
    folder, facts = run(tmp_path, trained, images)
    expected = plain_probabilities(trained.folder / "model", pixels(ROWS), 16)

    table = pq.read_table(folder / "predictions.parquet")
    assert table["path"].to_pylist() == [f"{row}.png" for row in range(ROWS)]
    assert table["label"].to_pylist() == [LABELS[row % 4] for row in range(ROWS)]
    assert np.array_equal(np.stack(table["probabilities"].to_numpy()), expected)
    assert table["prediction"].to_pylist() == [LABELS[best] for best in expected.argmax(1)]
    assert np.array_equal(table["confidence"].to_numpy(), expected.max(1))
    assert json.loads(table.schema.metadata[b"labels"]) == list(LABELS)

    assert facts["weights"] == trained.facts["weights"]
    assert facts["metrics"] == json.loads((folder / "metrics.json").read_text())
    accuracy = accuracy_score(np.arange(ROWS) % 4, expected.argmax(1))
    assert facts["metrics"]["accuracy"] == pytest.approx(accuracy)
    assert len(json.loads((folder / "per_class.json").read_text())) == len(LABELS)
    lines = (folder / "confusion.csv").read_text().splitlines()
    assert lines[0] == '"actual","predicted"'
    assert lines[1] == f'"ant","{LABELS[expected[0].argmax()]}"'
    assert len(lines) == ROWS + 1


def test_the_same_inputs_give_the_same_bytes(tmp_path, images):
    trained = write_model(tmp_path / "train")
    outputs = []
    for name in ("once", "again"):
        folder, facts = run(tmp_path, trained, images, name)
        files = [file for file in list_files(folder) if not file["path"].startswith("report/")]
        outputs.append((facts, files))
    assert outputs[0] == outputs[1]


def test_a_champion_whose_labels_stand_in_another_order_is_scored_by_name(tmp_path, images):
    trained = write_model(tmp_path / "train")
    _, expected = run(tmp_path, trained, images, "challenger")
    # The same network, its outputs and their names turned round together.
    turned = write_model(tmp_path / "turned", labels=LABELS[::-1])
    _turn_outputs(trained.folder / "model", turned.folder / "model")
    _, facts = run(tmp_path, turned, images, "champion")
    assert facts["metrics"] == pytest.approx(expected["metrics"])


def test_a_class_that_the_champion_does_not_know_is_counted_as_wrong(tmp_path, images):
    trained = write_model(tmp_path / "train", labels=("ant", "cat", "bee", "newt"))
    folder, facts = run(tmp_path, trained, images)
    per_class = {row["label"]: row for row in json.loads((folder / "per_class.json").read_text())}
    assert set(per_class) == set(LABELS)
    assert per_class["dog"]["recall"] == 0
    assert facts["metrics"]["worst_class_recall"] == 0
    said = pq.read_table(folder / "predictions.parquet").to_pylist()
    right = sum(row["label"] == row["prediction"] for row in said)
    assert facts["metrics"]["accuracy"] == pytest.approx(right / ROWS)
    likelihood = [
        row["probabilities"][("ant", "cat", "bee").index(row["label"])]
        if row["label"] != "dog"
        else np.finfo(np.float32).eps
        for row in said
    ]
    assert facts["metrics"]["log_loss"] == pytest.approx(-np.log(likelihood).mean())


def test_plots_are_drawn_for_people(tmp_path, images):
    trained = write_model(tmp_path / "train")
    (trained.folder / "report").mkdir()
    (trained.folder / "report" / "history.json").write_text(json.dumps(HISTORY))
    folder, _ = run(tmp_path, trained, images)
    drawn = {path.stem for path in (folder / "report").glob("*.png")}
    assert drawn == {
        "confusion_matrix",
        "learning_curves",
        "predictions",
        "reliability",
        "worst_mistakes",
    }
    for path in (folder / "report").glob("*.png"):
        with Image.open(path) as picture:
            assert len(picture.getcolors(1 << 24)) > 20, f"{path.name} is blank"


def test_scores_and_plots_are_added_to_the_run_of_the_training(tmp_path, images):
    trained = write_model(tmp_path / "train")
    project = workspace(tmp_path / "unused", tmp_path).project
    tracked = tracking.start_run(project, "toy", "key", {}, "digest")
    (trained.folder / "report").mkdir()
    (trained.folder / "report" / "mlflow.json").write_text(json.dumps({"run_id": tracked.run_id}))
    _, facts = run(tmp_path, trained, images)
    client = tracking.client(project)
    logged = client.get_run(tracked.run_id).data.metrics
    assert logged["test_accuracy"] == facts["metrics"]["accuracy"]
    files = [file.path for file in client.list_artifacts(tracked.run_id, "evaluate")]
    assert "evaluate/confusion_matrix.png" in files


def _turn_outputs(source: Path, target: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(source / "model.safetensors")
    for name in ("classifier.classifier.weight", "classifier.classifier.bias"):
        weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, target / "model.safetensors")
