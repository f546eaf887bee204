"""What a page shows of a model's answers."""

import numpy as np

from flows.pages.answers import accepted, confusion
from flows.pages.blocks import Heading, Matrix, Table
from tasks.data.metrics import ACCEPTS_NOTHING, Predictions, Tally


def tally(names, pairs):
    """The answers for as many images of each pair of a true and a predicted class."""
    rows = [(label, predicted) for label, predicted, count in pairs for _ in range(count)]
    labels, predicted = np.array(rows).T
    half = np.full(len(rows), 0.5, np.float32)
    return Tally(names, len(names), Predictions(labels, predicted, half, half))


def test_few_classes_have_a_matrix_whose_mistakes_lead_to_images():
    found = tally(["a", "b"], [(0, 0, 3), (0, 1, 1), (1, 1, 4)])
    _, matrix = confusion(found, {("a", "b"): "confused-0"})
    assert isinstance(matrix, Matrix)
    assert [[cell.count for cell in row] for row in matrix.rows] == [[3, 1], [0, 4]]
    assert matrix.rows[0][1].link == "confused-0"


def test_of_a_thousand_classes_the_most_confused_pairs_are_listed():
    names = [f"class {number}" for number in range(1000)]
    right = [(number, number, 2) for number in range(1000)]
    found = tally(names, [*right, (7, 8, 3), (500, 1, 6)])
    heading, table = confusion(found, {("class 500", "class 1"): "confused-0"})
    assert isinstance(heading, Heading)
    assert isinstance(table, Table)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["class 500", "class 1", "6", "8", "75.0%"],
        ["class 7", "class 8", "3", "5", "60.0%"],
    ]
    assert [row[2].link for row in table.rows] == ["#confused-0", ""]
    assert table.caption.startswith("2 of 2 pairs of 1,000 classes")


def test_the_precision_of_the_most_confident_answers_is_drawn_with_what_is_accepted():
    labels, predicted = np.zeros(4, int), np.array([1, 0, 0, 0])
    confidence = np.array([0.5, 0.9, 0.8, 0.7], np.float32)
    found = Tally(["a", "b"], 2, Predictions(labels, predicted, confidence, confidence))
    _, curve = accepted(found, 0.75)
    [line] = curve.lines
    assert [dot.title for dot in line.dots][-1] == "75.0% of 100% are right"
    assert len(line.dots) == 4
    assert len(curve.marks) == 1
    assert "is at least 0.75: 2 of 4 (50.0%); 100.0% of these are right (34.2% to" in curve.legend
    for least, legend in (
        (None, ""),
        (ACCEPTS_NOTHING, "The model accepts no answer: 0 of 4 (0.0%)."),
    ):
        _, curve = accepted(found, least)
        assert (curve.marks, curve.legend) == ([], legend)
