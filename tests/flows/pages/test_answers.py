"""What a page shows of a model's answers."""

import numpy as np

from flows.pages.answers import accepted, coverage, most_confused
from tasks.data.metrics import ACCEPTS_NOTHING, Predictions, Tally


def test_the_most_confused_pairs_of_a_thousand_classes_come_first():
    names = [f"class {number}" for number in range(1000)]
    pairs = [*((number, number, 2) for number in range(1000)), (7, 8, 3), (500, 1, 6)]
    rows = [(label, predicted) for label, predicted, count in pairs for _ in range(count)]
    labels, predicted = np.array(rows).T
    half = np.full(len(rows), 0.5, np.float32)
    found = most_confused(Tally(names, 1000, Predictions(labels, predicted, half, half)))
    assert found == [("class 500", "class 1", 6, 8), ("class 7", "class 8", 3, 5)]


def test_the_precision_of_the_most_confident_answers_is_drawn_with_what_is_accepted():
    labels, predicted = np.zeros(4, int), np.array([1, 0, 0, 0])
    confidence = np.array([0.5, 0.9, 0.8, 0.7], np.float32)
    found = Tally(["a", "b"], 2, Predictions(labels, predicted, confidence, confidence))
    points = coverage(found)
    assert (len(points), points[-1]["title"]) == (4, "75.0% of 100% are right")
    told = accepted(found, 0.75)
    assert told["share"] == 0.5
    assert "is at least 0.75: 2 of 4 (50.0%); 100.0% of these are right (34.2% to" in told["says"]
    nothing = accepted(found, ACCEPTS_NOTHING)
    assert nothing == {"share": 0.0, "says": "The model accepts no answer: 0 of 4 (0.0%)."}
