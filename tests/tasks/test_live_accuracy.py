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


def test_a_log_of_a_server_is_read_without_a_torn_line(tmp_path):
    answer = {"label": "k\u00e4fer", "probabilities": {"k\u00e4fer": 0.75}}
    for _ in range(2):  # two processes write to one folder
        log = PredictionLog(tmp_path, "weights")
        log.put([b"1", b"2"], [answer] * 2)
        log.close()
    first, _ = sorted(tmp_path.iterdir())
    first.write_text(first.read_text() + '{"sha256": "torn')
    found = read_answers(Project(tmp_path / "clone"), "vit", [tmp_path])
    assert [*found] == ANSWERS.names
    assert (found["label"].tolist(), found["confidence"].tolist()) == (
        ["k\u00e4fer"] * 4,
        [0.75] * 4,
    )


@pytest.mark.parametrize("text", ['{"a": 1}\n', "no JSON\n"])
def test_another_file_is_refused_by_name(tmp_path, text):
    (tmp_path / "1.jsonl").write_text(text)
    with pytest.raises(UsageError, match=r"1\.jsonl is no log of predictions"):
        read_answers(Project(tmp_path / "clone"), "vit", [tmp_path])


A, B = (hashlib.sha256(content).hexdigest() for content in (b"a", b"b"))


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def known(project) -> dict[str, str]:
    return read_labels(project, "vit")


def test_labels_are_added_and_the_last_one_counts(project, tmp_path):
    (tmp_path / "1.csv").write_text(f"sha256,label\n{A},1\n{B},cat\n")
    assert keep_labels(project, "vit", tmp_path / "1.csv") == "2 labels: 2 new, 0 changed."
    assert known(project) == {A: "1", B: "cat"}
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "b.png").write_bytes(b"b")
    pq.write_table(pa.table({"path": ["photos/b.png"], "label": ["dog"]}), tmp_path / "2.parquet")
    assert keep_labels(project, "vit", tmp_path / "2.parquet") == "1 labels: 0 new, 1 changed."
    assert keep_labels(project, "vit", tmp_path / "2.parquet") == "1 labels: 0 new, 0 changed."
    assert known(project) == {A: "1", B: "dog"}


def test_a_digest_in_capitals_is_the_same_image(project, tmp_path):
    (tmp_path / "1.csv").write_text(f"sha256,label\n{A.upper()},cat\n {B} ,dog\n")
    assert keep_labels(project, "vit", tmp_path / "1.csv") == "2 labels: 2 new, 0 changed."
    assert known(project) == {A: "cat", B: "dog"}


def test_a_file_of_which_no_line_fits_is_refused(project, tmp_path):
    (tmp_path / "1.csv").write_text(f"sha256,label\n{A},cat\n")
    log = PredictionLog(tmp_path / "log", "weights")
    log.put([b"b"], [{"label": "dog", "probabilities": {"dog": 0.75}}])
    log.close()
    with pytest.raises(UsageError, match=r"1\.csv: vit was asked for none of its images \(1\)"):
        keep_labels(project, "vit", tmp_path / "1.csv", [tmp_path / "log"])
    assert known(project) == {}


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
    ],
)
def test_a_wrong_file_changes_nothing(project, tmp_path, text, message):
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(UsageError, match=message):
        keep_labels(project, "vit", tmp_path / "labels.csv")
    assert known(project) == {}


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
    answers = answered([("a", "cat", 0), ("b", "dog", 0), ("a", "dog", 1), ("c", "cat", 1)])
    found = measure(answers, {"a": "cat", "b": "cat"}, TEST, CLASSES, LIMITS)
    first, second = found["weeks"]
    assert (first["week"], first["images"], first["labelled"], first["correct"]) == (
        "2026-W02", 2, 2, 1,
    )  # fmt: skip
    assert first["accuracy"] == 0.5
    assert (first["low"], first["high"]) == pytest.approx((0.0945, 0.9055), abs=1e-4)
    assert (second["images"], second["labelled"], second["accuracy"]) == (1, 0, None)
    assert found["worse"] is None
    assert "too few labels" in sentence(VERSION, found | {"instead": None})


@pytest.mark.parametrize(("wrong", "worse"), [(10, False), (14, False), (40, True)])
def test_a_version_is_worse_if_the_whole_interval_of_the_difference_is(wrong, worse):
    images = [f"{number:03}" for number in range(200)]
    answers = answered([(image, "cat", 1) for image in images])
    truth = {image: "dog" if n < wrong else "cat" for n, image in enumerate(images)}
    found = measure(answers, truth, TEST, CLASSES, LIMITS)
    assert found["worse"] is worse
    assert found["difference"] == pytest.approx(-wrong / 200 + 0.05)
    assert found["classes"][0]["label"] == "dog"
    assert found["calibration_error"] == pytest.approx(abs(0.9 - (1 - wrong / 200)), abs=1e-6)


def test_the_interval_of_the_difference_is_newcombes():
    images = [f"{number:03}" for number in range(70)]
    answers = answered([(image, "cat", 0) for image in images])
    truth = {image: "cat" if n < 56 else "dog" for n, image in enumerate(images)}
    test = {"accuracy": 48 / 80, "rows": 80}
    found = measure(answers, truth, test, CLASSES, LIMITS)
    # Table II of the source, method 10, example a.
    interval = (found["difference_low"], found["difference_high"])
    assert interval == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_the_verdict_is_about_the_last_weeks_and_tells_unknown_labels():
    old = [(f"old-{number}", "cat", 0) for number in range(100)]
    new = [(f"new-{number}", "cat", week) for week in (4, 5) for number in range(20 * week)]
    truth = {image: "cow" if image.startswith("old") else "cat" for image, _, _ in old + new}
    found = measure(answered(old + new), truth, TEST, CLASSES, LIMITS)
    assert (found["labelled"], found["accuracy"], found["worse"]) == (100, 1.0, False)
    assert found["unknown"] == []
    found = measure(answered(old), truth, TEST, CLASSES, LIMITS)
    assert (found["accuracy"], found["worse"], found["unknown"]) == (0.0, True, ["cow"])


def test_without_answers_or_labels_it_says_so():
    none = measure(answered([]), {}, TEST, CLASSES, LIMITS)
    assert "answered nothing" in sentence(VERSION, none | {"instead": None})
    found = measure(answered([("a", "cat", 0)]), {"b": "cat"}, TEST, CLASSES, LIMITS)
    assert sentence(VERSION, found | {"instead": 1}).startswith("None of the 1 images")
