import numpy as np

from tasks.evaluate.metrics import Predictions
from tasks.evaluate.plots import GRID_COLUMNS, GRID_ROWS, Examples

SHOWN = GRID_ROWS * GRID_COLUMNS


def examples(labels, predicted, confidence, chunk) -> Examples:
    """Looks through the predictions, in chunks of as many rows."""
    columns = (np.array(labels), np.array(predicted), np.array(confidence, np.float32))
    found = Examples(len(labels))
    for start in range(0, len(labels), chunk):
        part = [column[start : start + chunk] for column in columns]
        found.add(start, Predictions(*part, part[2]))
    return found


def test_the_sample_is_spread_over_the_whole_split():
    rows = 1_000
    found = examples(np.arange(rows), np.arange(rows), np.full(rows, 0.5), chunk=64)
    assert [each.row for each in found.sample] == list(np.linspace(0, rows - 1, SHOWN).astype(int))
    assert all(each.label == each.row for each in found.sample)
    assert found.worst == []


def test_a_small_split_is_shown_whole():
    found = examples([0, 1, 2], [0, 0, 2], [0.9, 0.8, 0.7], chunk=2)
    assert [(each.row, each.label, each.predicted) for each in found.sample] == [
        *((0, 0, 0), (1, 1, 0), (2, 2, 2))
    ]


def test_the_worst_mistakes_are_the_most_confident_ones_and_of_equal_ones_the_first():
    random = np.random.default_rng(0)
    labels, predicted = random.integers(0, 3, (2, 1_000))
    confidence = random.integers(50, 60, 1_000) / 100
    found = examples(labels, predicted, confidence, chunk=64)
    wrong = np.flatnonzero(labels != predicted)
    expected = sorted(wrong, key=lambda row: (-confidence[row], row))[:SHOWN]
    assert [each.row for each in found.worst] == expected
