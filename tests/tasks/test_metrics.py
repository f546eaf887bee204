import numpy as np
import pytest
from sklearn.metrics import f1_score, log_loss as sklearn_log_loss, precision_score, recall_score

from tasks.metrics import Predictions, calibration_bins, log_loss, per_class, summarise

NAMES = ("a", "b", "c")


def predictions(labels, predicted, confidence=None, likelihood=None, names=NAMES) -> Predictions:
    rows = len(labels)
    return Predictions(
        names,
        len(NAMES),
        np.array(labels),
        np.array(predicted),
        np.array(np.full(rows, 0.5) if confidence is None else confidence, np.float32),
        np.array(np.full(rows, 0.5) if likelihood is None else likelihood, np.float32),
    )


def test_the_metrics_are_those_of_the_confusion_counted_by_hand():
    said = summarise(predictions([0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2]))
    assert said["rows"] == 6
    assert said["accuracy"] == pytest.approx(4 / 6)
    assert said["macro_recall"] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert said["macro_precision"] == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)
    assert said["macro_f1"] == pytest.approx((4 / 5 + 1 / 2 + 2 / 3) / 3)
    assert said["worst_class_recall"] == pytest.approx(1 / 2)


def test_macro_means_are_those_of_scikit_learn():
    random = np.random.default_rng(0)
    labels, predicted = random.integers(0, 3, 200), random.integers(0, 3, 200)
    said = summarise(predictions(labels, predicted))
    for name, function in (
        ("precision", precision_score),
        ("recall", recall_score),
        ("f1", f1_score),
    ):
        assert said[f"macro_{name}"] == pytest.approx(function(labels, predicted, average="macro"))


def test_a_class_that_is_never_predicted_counts_as_zero():
    table = per_class(predictions([0, 1, 2], [0, 1, 1]))
    assert table[2] == {"label": "c", "precision": 0, "recall": 0, "f1": 0, "rows": 1}


def test_a_class_that_only_the_model_knows_is_a_mistake_and_no_class_of_its_own():
    known = predictions([0, 1, 2, 2], [0, 1, 2, 3], names=(*NAMES, "old"))
    assert [row["label"] for row in per_class(known)] == ["a", "b", "c"]
    assert summarise(known)["accuracy"] == 0.75
    assert summarise(known)["macro_recall"] == pytest.approx(2.5 / 3)


def test_log_loss_is_that_of_scikit_learn():
    random = np.random.default_rng(0)
    probabilities = random.dirichlet(np.ones(3), 100).astype(np.float32)
    labels = random.integers(0, 3, 100)
    likelihood = probabilities[np.arange(100), labels]
    assert log_loss(likelihood) == pytest.approx(sklearn_log_loss(labels, probabilities), rel=1e-5)


def test_log_loss_of_an_impossible_class_is_finite():
    assert log_loss(np.array([0.0], np.float32)) == pytest.approx(15.94, abs=0.01)


def test_calibration_compares_confidence_with_accuracy_in_bins():
    # Two bins of 15: (0.6, 0.667] with accuracy 1/2, (0.933, 1] with accuracy 1.
    said = predictions([0, 0, 0, 0], [0, 1, 0, 0], confidence=[0.61, 0.63, 0.96, 1.0])
    bins = calibration_bins(said)
    assert bins.share == pytest.approx([0.5, 0.5])
    assert bins.accuracy == pytest.approx([0.5, 1.0])
    assert bins.confidence == pytest.approx([0.62, 0.98])
    assert bins.error == pytest.approx(0.5 * 0.12 + 0.5 * 0.02)
