"""The comparison as a step: which images it is of, and which number it has."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrain.project import Project
from retrain.registry import versions
from retrain.step import REPORT
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data.champion import Opponents, Registered, Scored
from tasks.data.learnt_images import LEARNT
from tasks.data.predictions import image_id
from tasks.data.slices import FILE, NO_SLICES, Slices
from tasks.evaluate import predictions
from tasks.gate.comparison import Terms, compare, compare_with
from tests import templates
from tests.tasks.toy_model import write_model, write_report

CLASSES = ("ant", "bee")
LABELS = CLASSES * 100
RULES, NOTHING_KNOWN = Gate(), Terms(None, None)


def sha256(row: int) -> str:
    return hashlib.sha256(str(row).encode()).hexdigest()


def write(folder, wrong, known=CLASSES, classes=CLASSES, labels=LABELS) -> Artifact:
    """Predictions that are wrong for as many of the first images."""
    rows = len(labels)
    predicted = [
        known[(known.index(label) + (row < wrong)) % len(known)] if label in known else known[0]
        for row, label in enumerate(labels)
    ]
    described = {
        "path": [f"{row}.png" for row in range(rows)],
        "sha256": [f"encoded {row}" for row in range(rows)],
        "pixels": [sha256(row) for row in range(rows)],
        "label": list(labels),
    }
    best = np.array([known.index(name) for name in predicted])
    probabilities = np.full((rows, len(known)), 0.1, np.float32)
    probabilities[np.arange(rows), best] = 0.9
    folder.mkdir(parents=True)
    batch = pa.RecordBatch.from_pydict(described)
    answers = predictions.Answers(batch, best, probabilities)
    list(predictions.write([answers], known, classes, folder))
    return Artifact("evaluate", "k", "d", folder, {})


def compared(tmp_path, ours: int, theirs: int, rules=RULES, terms=NOTHING_KNOWN):
    mine, other = write(tmp_path / "ours", ours), write(tmp_path / "theirs", theirs)
    return compare(rules, mine, other, terms, None)


def test_the_predictions_are_compared_image_by_image(tmp_path):
    found = compared(tmp_path, 3, 20, Gate(no_worse=("recall[bee]", "log_loss")))
    assert (found["images"], found["learnt"], found["other_classes"]) == (200, 0, 0)
    accuracy = found["metrics"]["accuracy"]
    assert (accuracy["gained"], accuracy["lost"], accuracy["outcome"]) == (17, 0, "better")
    assert accuracy["challenger"] == pytest.approx(197 / 200)
    assert accuracy["opponent"] == pytest.approx(180 / 200)
    assert list(found["metrics"]) == ["accuracy", "recall[bee]", "log_loss"]
    outcomes = [each["outcome"] for each in found["metrics"].values()]
    assert outcomes == ["better", "better", "cannot tell"]  # an unseen image may lose 16 nats
    assert found["metrics"]["log_loss"]["difference"] == pytest.approx(
        17 / 200 * np.log(9), rel=1e-5
    )


def test_images_that_the_opponent_has_learnt_are_left_out(tmp_path):
    file = tmp_path / LEARNT
    np.save(file, np.array(sorted(image_id(sha256(row)) for row in range(150)), np.uint64))
    found = compared(tmp_path, 3, 160, terms=Terms(file, "training"))
    assert (found["images"], found["learnt"], found["recorded"]) == (50, 150, True)
    assert found["metrics"]["accuracy"]["gained"] == 10


def test_images_that_the_start_of_the_challenger_has_learnt_are_left_out(tmp_path):
    mine, other = write(tmp_path / "ours", 3), write(tmp_path / "theirs", 20)
    (mine.folder / REPORT).mkdir()
    np.save(mine.folder / REPORT / LEARNT, np.array([image_id(sha256(0))], np.uint64))
    found = compare(RULES, mine, other, NOTHING_KNOWN, None)
    assert (found["images"], found["learnt"], found["recorded"]) == (199, 1, False)


def test_too_few_images_are_not_compared(tmp_path):
    file = tmp_path / LEARNT
    np.save(file, np.array(sorted(image_id(sha256(row)) for row in range(180)), np.uint64))
    found = compared(tmp_path, 3, 160, terms=Terms(file, "training"))
    assert (found["images"], found["metrics"]) == (20, {})


def test_only_classes_that_both_know_are_compared(tmp_path):
    labels = ("ant", "bee", "cat") * 50
    mine = write(tmp_path / "ours", 3, ("ant", "bee", "cat"), ("ant", "bee", "cat"), labels)
    other = write(tmp_path / "theirs", 9, ("ant", "bee", "dog"), ("ant", "bee", "cat"), labels)
    found = compare(Gate(), mine, other, Terms(None, None), None)
    assert (found["images"], found["other_classes"], found["recorded"]) == (100, 50, False)
    assert found["metrics"]["accuracy"]["gained"] == 4


def test_a_class_that_the_compared_images_lack_does_not_count_in_an_average(tmp_path):
    """Of ten classes two are left, and four of a hundred images of each are lost."""
    classes = tuple("abcdefghij")
    labels = ("a", "b") * 100
    mine, other = (
        write(tmp_path / name, wrong, classes, classes, labels)
        for name, wrong in (("ours", 8), ("theirs", 0))
    )
    rules = Gate(metric="macro_recall", margin=0.01, no_worse=("recall[c]", "macro_f1"))
    found = compare(rules, mine, other, NOTHING_KNOWN, None)
    recall = found["metrics"]["macro_recall"]
    assert recall["difference"] == pytest.approx(-0.04)
    assert recall["outcome"] == "worse"
    assert found["absent"] == list("cdefghij")
    assert found["not_compared"] == ["recall[c]"]
    assert list(found["metrics"]) == ["macro_recall", "macro_f1"]


def test_classes_that_the_opponent_does_not_know_are_named(tmp_path):
    known = (*CLASSES, "cat")
    mine = write(tmp_path / "ours", 0, known, known, known * 50)
    other = write(tmp_path / "theirs", 0, CLASSES, known, known * 50)
    assert compare(RULES, mine, other, NOTHING_KNOWN, None)["new_classes"] == ["cat"]


def test_slices_are_compared_by_their_images(tmp_path):
    sites = ["Lyon" if row < 60 else "Oslo" if row < 180 else "Bath" for row in range(200)]
    (tmp_path / "slice").mkdir()
    pq.write_table(pa.table({"site": sites}), tmp_path / "slice" / FILE)
    divided = Artifact("slice", "k", "d", tmp_path / "slice", {})
    counts = [{"column": "site", "value": value} for value in ("Bath", "Lyon", "Oslo")]
    slices = Slices(divided, Artifact("score_slices", "k", "s", tmp_path, {"slices": counts}))
    rules = Gate(slices=("site",), no_worse=("accuracy[site]",))
    found = compared(tmp_path, 20, 3, rules, Terms(None, None, slices))
    metrics = found["metrics"]
    assert list(metrics) == ["accuracy", "accuracy[site=Lyon]", "accuracy[site=Oslo]"]  # Bath: 20
    lyon, oslo = metrics["accuracy[site=Lyon]"], metrics["accuracy[site=Oslo]"]
    assert (lyon["lost"], lyon["outcome"]) == (17, "worse")
    assert (oslo["lost"], oslo["challenger"]) == (0, 1.0)
    one = Gate(slices=("site",), no_worse=("accuracy[site=Lyon]",))
    alone = compared(tmp_path / "alone", 20, 3, one, Terms(None, None, slices))["metrics"]
    assert list(alone) == ["accuracy", "accuracy[site=Lyon]"]


def test_of_many_slices_one_has_to_be_surer_to_be_worse(tmp_path):
    """Five lost images and none gained are worse alone (1/32), and not among five slices."""
    sites = [str(row // 40) for row in range(200)]
    (tmp_path / "slice").mkdir()
    pq.write_table(pa.table({"site": sites}), tmp_path / "slice" / FILE)
    divided = Artifact("slice", "k", "d", tmp_path / "slice", {})
    counts = [{"column": "site", "value": str(value)} for value in range(5)]
    slices = Slices(divided, Artifact("score_slices", "k", "s", tmp_path, {"slices": counts}))
    terms = Terms(None, None, slices)
    for name, outcome in (("accuracy[site=0]", "worse"), ("accuracy[site]", "cannot tell")):
        rules = Gate(slices=("site",), no_worse=(name,))
        metrics = compared(tmp_path / name, 5, 0, rules, terms)["metrics"]
        assert metrics["accuracy[site=0]"]["outcome"] == outcome


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """A project, the first version of a model, and what its run has."""
    root = tmp_path_factory.mktemp("project")
    project = Project(root)
    templates.place_mlflow_database(root)
    trained = write_model(root / "train")
    write_report(trained, project)
    run_id = json.loads((trained.folder / "report" / "mlflow.json").read_text())["run_id"]
    return project, run_id


def version_of(project, run_id, package, number) -> versions.ModelVersion:
    """A version as the registry would give it."""
    return versions.ModelVersion(
        name="toy", weights="w", package_digest=package, train_digest=f"t-{package}",
        train_key=None, start=None, family="vit", images={}, classes=None, metrics={}, data=None,
        commit=None, run_id=run_id, version=number, aliases=(), verdict=None, created="now",
    )  # fmt: skip


def scored(project, run_id, number, tmp_path) -> Scored:
    version = version_of(project, run_id, f"package-{number}", number)
    evaluation = Artifact("evaluate_champion", "k", "d", tmp_path, {"metrics": {"accuracy": 0.9}})
    return Scored(Registered(project, version), evaluation)


def test_without_a_champion_nothing_is_compared():
    assert compare_with(None, NO_SLICES, None, None) == Opponents(None, None)
