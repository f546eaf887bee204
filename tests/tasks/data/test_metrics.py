import re

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
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
    found = outcomes(tally(labels, predicted))
    counts = [[[row["tn"], row["fp"]], [row["fn"], row["tp"]]] for row in found["classes"]]
    assert counts == multilabel_confusion_matrix(labels, predicted).tolist()
    assert [row["label"] for row in found["classes"]] == list(NAMES)
    names = ("precision", "recall", "f1")
    each = precision_recall_fscore_support(labels, predicted)
    for place, name in enumerate((*names, "rows")):
        assert [row[name] for row in found["classes"]] == pytest.approx(each[place])
    for average in ("macro", "micro"):
        expected = precision_recall_fscore_support(labels, predicted, average=average)[:3]
        assert [found[average][name] for name in names] == pytest.approx(expected)
    assert found["micro"]["f1"] == pytest.approx(accuracy_score(labels, predicted))
    metrics = summarise(tally(labels, predicted))
    # The names that the gate's rules are checked against.
    assert metrics.keys() == METRICS.keys() | {"rows"}
    assert {name: metrics[f"macro_{name}"] for name in names} == pytest.approx(found["macro"])
    assert metrics["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert metrics["worst_class_recall"] == pytest.approx(min(each[1]))
    assert metrics["rows"] == 200


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
    probabilities = random.dirichlet(np.ones(3), 100).astype(np.float32)
    labels = random.integers(0, 3, 100)
    likelihood = probabilities[np.arange(100), labels]
    loss = summarise(tally(labels, labels, likelihood=likelihood))["log_loss"]
    assert loss == pytest.approx(sklearn_log_loss(labels, probabilities), rel=1e-5)
    # That of an impossible class is finite.
    assert summarise(tally([0], [1], likelihood=[0.0]))["log_loss"] == pytest.approx(
        15.94, abs=0.01
    )
    assert LOWER_IS_BETTER == ["calibration_error", "log_loss"]


def test_calibration_compares_confidence_with_accuracy_in_bins():
    # Two bins of 15: (0.6, 0.667] with accuracy 1/2, (0.933, 1] with accuracy 1.
    counts = tally([0, 0, 0, 0], [0, 1, 0, 0], confidence=[0.61, 0.63, 0.96, 1.0])
    bins = counts.calibration
    assert bins.share == pytest.approx([0.5, 0.5])
    assert bins.accuracy == pytest.approx([0.5, 1.0])
    assert bins.confidence == pytest.approx([0.62, 0.98])
    assert bins.error == pytest.approx(0.5 * 0.12 + 0.5 * 0.02)
    edges = tally([0, 0, 0], [0, 0, 0], confidence=[0.05, 0.066, 0.067]).calibration
    assert edges.share == pytest.approx([2 / 3, 1 / 3])


def test_the_confusion_matrix_has_true_classes_in_rows():
    confusion = tally([0, 0, 1, 2, 2], [0, 2, 1, 2, 2]).confusion
    assert confusion.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 2]]


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
