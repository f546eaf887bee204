"""Answers in production, labels that came later, and how a version does by both."""

import hashlib
from datetime import UTC, datetime, timedelta

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from models.serving import PredictionLog
from retrain.errors import UsageError
from retrain.project import Project
from retrain.workload import Production
from tasks.live_accuracy import (
    ANSWERS,
    keep_labels,
    measure,
    read_answers,
    read_labels,
    sentence,
)
from tests.tasks.toy_model import VERSION


def logged(folder, images) -> None:
    """The log of a server that has said of images that they show a beetle."""
    log = PredictionLog(folder, "weights")
    log.put(images, [{"label": "k\u00e4fer", "probabilities": {"k\u00e4fer": 0.75}}] * len(images))
    log.close()


def test_a_log_of_a_server_is_read_without_a_torn_line(tmp_path):
    for _ in range(2):  # two processes write to one folder
        logged(tmp_path, [b"1", b"2"])
    first, _ = sorted(tmp_path.iterdir())
    first.write_text(first.read_text() + '{"sha256": "torn')
    found = read_answers(Project(tmp_path / "clone"), "vit", [tmp_path])
    assert [*found] == ANSWERS.names
    assert found[["label", "confidence"]].to_numpy().tolist() == [["k\u00e4fer", 0.75]] * 4


@pytest.mark.parametrize("text", ['{"a": 1}\n', "no JSON\n"])
def test_another_file_is_refused_by_name(tmp_path, text):
    (tmp_path / "1.jsonl").write_text(text)
    with pytest.raises(UsageError, match=r"1\.jsonl is no log of predictions"):
        read_answers(Project(tmp_path / "clone"), "vit", [tmp_path])


A, B = (hashlib.sha256(content).hexdigest() for content in (b"a", b"b"))


def test_labels_are_added_and_the_last_one_counts(tmp_path):
    project = Project(tmp_path)
    (tmp_path / "1.csv").write_text(f"sha256,label\n{A.upper()},1\n {B} ,cat\n")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "b.png").write_bytes(b"b")
    pq.write_table(pa.table({"path": ["photos/b.png"], "label": ["dog"]}), tmp_path / "2.parquet")
    for name, said, labels in (
        ("1.csv", "2 labels: 2 new, 0 changed.", {A: "1", B: "cat"}),
        ("2.parquet", "1 labels: 0 new, 1 changed.", {A: "1", B: "dog"}),
        ("2.parquet", "1 labels: 0 new, 0 changed.", {A: "1", B: "dog"}),
    ):
        assert keep_labels(project, "vit", tmp_path / name) == said
        assert read_labels(project, "vit") == labels


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"sha256,label\n{A},cat\n{A[1:]},dog\n", "needs rows with a label, and a sha256 or a"),
        ("name,label\nx,cat\n", "needs rows with a label, and a sha256 or a path"),
        (f"sha256,label\n{A},\n", "needs rows with a label"),
        (f"sha256,label\n{A},cat\n{A},dog\n", "two labels: cat and dog"),
        ("path,label\ngone.png,cat\n", "the image gone.png cannot be read"),
        ("", "needs rows with a label, and a sha256 or a path"),
        (f'sha256,label\n{A},"cat', "cannot be read as CSV or Parquet"),
        (f"sha256,label\n{A},cat\n", r"labels\.csv: vit was asked for none of its images \(1\)"),
    ],
)
def test_a_wrong_file_changes_nothing(tmp_path, text, message):
    logged(tmp_path / "log", [b"b"])
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        keep_labels(Project(tmp_path), "vit", tmp_path / "labels.csv", [tmp_path / "log"])
    assert read_labels(Project(tmp_path), "vit") == {}


MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
TEST = {"accuracy": 0.95, "rows": 2000}
CLASSES = [
    {"label": "cat", "recall": 0.96, "rows": 1000},
    {"label": "dog", "recall": 0.94, "rows": 1000},
]
LIMITS = Production(weeks=2, max_drop=0.02)


def answered(rows) -> pd.DataFrame:
    """Answers (image, label, weeks after the first Monday)."""
    return pa.Table.from_pylist(
        [
            {"sha256": image, "label": label, "confidence": 0.9, "weights": "w",
             "time": MONDAY + timedelta(weeks=week)}
            for image, label, week in rows
        ],
        ANSWERS,
    ).to_pandas()  # fmt: skip


def test_each_week_has_its_accuracy_and_an_image_counts_once():
    rows = [("a", "cat", 0), ("b", "dog", 0), ("d", "dog", 0), ("a", "dog", 1), ("c", "cat", 1)]
    truth = {"a": "cat", "b": "cat", "d": "cow"}
    found = measure(answered(rows), truth, TEST, CLASSES, LIMITS)
    interval = pytest.approx(0.0615, abs=1e-4), pytest.approx(0.7923, abs=1e-4)
    names = ("week", "images", "labelled", "correct", "accuracy", "low", "high")
    assert [tuple(week[name] for name in names) for week in found["weeks"]] == [
        ("2026-W02", 3, 3, 1, 1 / 3, *interval),
        ("2026-W03", 1, 0, 0, None, None, None),
    ]
    assert [each["label"] for each in found["classes"]] == ["cat", "cow"]  # what lost most
    assert found["worse"] is None
    assert "too few labels" in sentence(VERSION, found | {"instead": None})


@pytest.mark.parametrize(
    ("images", "wrong", "test", "worse", "low", "high"),
    [
        (200, 10, TEST, False, -0.0405, 0.0249),
        (200, 14, TEST, False, -0.0649, 0.0097),
        (200, 40, TEST, True, -0.2115, -0.0994),
        (30, 10, TEST, True, -0.4624, -0.1419),  # as few as there may be
        # Newcombe's Table II, method 10, example a.
        (70, 14, {"accuracy": 48 / 80, "rows": 80}, False, 0.0524, 0.3339),
    ],
)
def test_a_version_is_worse_if_the_whole_interval_of_the_difference_is(
    images, wrong, test, worse, low, high
):
    answers = answered([(f"{number:03}", "cat", 1) for number in range(images)])
    truth = {f"{n:03}": "dog" if n < wrong else "cat" for n in range(images)}
    found = measure(answers, truth, test, CLASSES, LIMITS)
    assert (found["worse"], found["classes"][0]["label"]) == (worse, "dog")
    assert found["difference"] == pytest.approx(1 - wrong / images - test["accuracy"])
    assert found["difference_low"] == pytest.approx(low, abs=5e-5)
    assert found["difference_high"] == pytest.approx(high, abs=5e-5)
    assert found["calibration_error"] == pytest.approx(abs(wrong / images - 0.1), abs=1e-6)
    verdict = "worse than production.max_drop allows" if worse else "not clearly worse"
    assert f"in its test: {verdict}, " in sentence(VERSION, found | {"instead": None})


def test_the_verdict_is_about_the_last_weeks_and_tells_unknown_labels():
    old = [(f"old-{number}", "cat", 0) for number in range(100)]
    new = [(f"new-{number}", "cat", week) for week in (4, 5) for number in range(20 * week)]
    truth = {image: "cow" if image.startswith("old") else "cat" for image, _, _ in old + new}
    names = ("labelled", "accuracy", "worse", "unknown")
    for answers, verdict in ((old + new, (100, 1.0, False, [])), (old, (100, 0.0, True, ["cow"]))):
        found = measure(answered(answers), truth, TEST, CLASSES, LIMITS)
        assert tuple(found[name] for name in names) == verdict


@pytest.mark.parametrize(
    ("rows", "said"), [([], "answered nothing"), ([("a", "cat", 0)], "None of the 1 images")]
)
def test_without_answers_or_labels_it_says_so(rows, said):
    found = measure(answered(rows), {"b": "cat"}, TEST, CLASSES, LIMITS)
    assert said in sentence(VERSION, found | {"instead": None})
