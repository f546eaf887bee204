import numpy as np

from tasks.data.metrics import Predictions, Tally
from tasks.evaluate import plots
from tasks.evaluate.plots import SHOWN


def tally(names, labels, predicted, confidence) -> Tally:
    confidence = np.array(confidence, np.float32)
    given = Predictions(np.array(labels), np.array(predicted), confidence, confidence)
    return Tally(names, len(names), given)


def test_the_worst_mistakes_are_the_most_confident_ones_and_of_equal_ones_the_first():
    random = np.random.default_rng(0)
    labels, predicted = random.integers(0, 3, (2, 1_000))
    confidence = random.integers(50, 60, 1_000) / 100
    wrong = np.flatnonzero(labels != predicted)
    expected = sorted(wrong, key=lambda row: (-confidence[row], row))[:SHOWN]
    shown = plots.worst_mistakes(tally("abc", labels, predicted, confidence))
    assert shown.tolist() == expected


NAMES = ["$x^{$", "$x^2$", r"\frac{", "_a", "two\nlines", "x" * 5_000, "é" * 300, "a\0b", "", "%"]
