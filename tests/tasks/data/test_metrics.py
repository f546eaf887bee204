import re

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    log_loss as sklearn_log_loss,
    multilabel_confusion_matrix,
    precision_recall_fscore_support,
)

from tasks.data.metrics import (
    LOWER_IS_BETTER,
    METRICS,
    Predictions,
    Tally,
    outcomes,
    split_name,
    summarise,
    wilson,
)

NAMES = ("a", "b", "c")


def tally(labels, predicted, confidence=None, likelihood=None, names=NAMES, classes=3) -> Tally:
    half = np.full(len(labels), 0.5, np.float32)
    given = Predictions(
        np.array(labels, np.int64),
        np.array(predicted, np.int64),
        half if confidence is None else np.array(confidence, np.float32),
        half if likelihood is None else np.array(likelihood, np.float32),
    )
    return Tally(names, classes, given)


def test_the_outcomes_of_each_class_and_their_averages_are_those_of_scikit_learn():
    random = np.random.default_rng(1)
    labels, predicted = random.integers(0, 3, 200), random.choice([0, 1, 1, 2], 200)
    given = tally(labels, predicted)
    assert given.confusion.tolist() == confusion_matrix(labels, predicted).tolist()
    found = outcomes(given)
    counts = [[[row["tn"], row["fp"]], [row["fn"], row["tp"]]] for row in found["classes"]]
    assert counts == multilabel_confusion_matrix(labels, predicted).tolist()
    names = ("precision", "recall", "f1", "rows")
    each = np.array(precision_recall_fscore_support(labels, predicted)).T
    rows = [[row[name] for name in ("label", *names)] for row in found["classes"]]
    assert rows == [
        [label, *map(pytest.approx, row)] for label, row in zip("abc", each, strict=True)
    ]
    for average in ("macro", "micro"):
        expected = precision_recall_fscore_support(labels, predicted, average=average)[:3]
        assert [found[average][name] for name in names[:3]] == pytest.approx(expected)
    metrics = summarise(given)
    # The names that the gate's rules are checked against.
    assert metrics.keys() == METRICS.keys() | {"rows"}
    assert {name: metrics[f"macro_{name}"] for name in names[:3]} == found["macro"]
    assert metrics["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert (metrics["worst_class_recall"], metrics["rows"]) == (min(each[:, 1]), 200)


def test_a_class_that_is_never_predicted_or_that_only_the_model_knows_counts_as_mistakes():
    table = outcomes(tally([0, 1, 2], [0, 1, 1]))["classes"]
    counts = {"rows": 1, "predicted": 0, "tp": 0, "fp": 0, "fn": 1, "tn": 2}
    assert table[2] == {"label": "c", "precision": 0, "recall": 0, "f1": 0} | counts
    known = tally([0, 1, 2, 2], [0, 1, 2, 3], names=(*NAMES, "old"))
    assert [row["label"] for row in outcomes(known)["classes"]] == ["a", "b", "c"]
    assert summarise(known)["accuracy"] == 0.75
    assert summarise(known)["macro_recall"] == pytest.approx(2.5 / 3)


def test_log_loss_is_that_of_scikit_learn():
    random = np.random.default_rng(0)
    labels, probabilities = random.integers(0, 3, 100), random.dirichlet(np.ones(3), 100)
    likelihood = probabilities[np.arange(100), labels]
    found = summarise(tally(labels, labels, likelihood=likelihood))["log_loss"]
    assert found == pytest.approx(sklearn_log_loss(labels, probabilities), rel=1e-5)
    impossible = summarise(tally([0], [1], likelihood=[0.0]))["log_loss"]
    assert impossible == pytest.approx(15.94, abs=0.01)
    assert LOWER_IS_BETTER == ["calibration_error", "log_loss"]


@pytest.mark.parametrize(("part", "whole"), [(0, 9), (1, 9), (7, 8), (8, 8), (500, 2000)])
def test_the_interval_of_a_share_is_that_of_scipy(part, whole):
    expected = binomtest(part, whole).proportion_ci(method="wilson")
    assert wilson(part, whole) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("predicted", "given", "share", "accuracy", "confidence"),
    [
        # Two bins of 15: (0.6, 0.667] with accuracy 1/2, (0.933, 1] with accuracy 1.
        ([0, 1, 0, 0], [0.61, 0.63, 0.96, 1.0], [0.5, 0.5], [0.5, 1.0], [0.62, 0.98]),
        ([0, 0, 0], [0.05, 0.066, 0.067], [2 / 3, 1 / 3], [1.0, 1.0], [0.058, 0.067]),
    ],
)
def test_calibration_compares_confidence_with_accuracy_in_bins(
    predicted, given, share, accuracy, confidence
):
    bins = tally([0] * len(given), predicted, confidence=given).calibration
    assert bins.share == pytest.approx(share)
    assert bins.accuracy == pytest.approx(accuracy)
    assert bins.confidence == pytest.approx(confidence)
    assert bins.error == pytest.approx(np.abs(np.subtract(accuracy, confidence)) @ share)


def test_the_metrics_of_many_classes_take_no_memory_for_each_pair_of_them():
    names = tuple(str(number) for number in range(21_841))
    all_right = tally(range(21_841), range(21_841), names=names, classes=21_841)
    assert summarise(all_right)["macro_f1"] == 1


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("accuracy", ("accuracy", None)),
        ("recall[cat]", ("recall", "cat")),
        ("f1[a[b]]", ("f1", "a[b]")),
        ("precision[]", ("precision", "")),
        *((name, None) for name in ("recall", "rows", "recall[cat", "recallcat]", "accuracy[cat]")),
    ],
)
def test_the_name_of_a_metric_may_have_a_class(name, split):
    if split:
        assert split_name(name) == split
    else:
        with pytest.raises(KeyError, match=re.escape(name)):
            split_name(name)
