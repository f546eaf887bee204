"""What a page shows of a model's answers."""

import numpy as np

from flows.pages.answers import confusion
from flows.pages.blocks import Heading, Matrix, Table
from tasks.data.metrics import Predictions, Tally


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
