from time import process_time

import numpy as np
from matplotlib import rc_context
from PIL import Image

from tasks.data.metrics import Confusion, Predictions, Tally
from tasks.data.shards import Shards
from tasks.evaluate import plots
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


def draw(folder, names, rows=200):
    """Draws the plots of a model that is right about half of the images."""
    random = np.random.default_rng(0)
    labels = random.integers(0, len(names), rows)
    predicted = np.where(random.random(rows) < 0.5, labels, random.integers(0, len(names), rows))
    confidence = random.uniform(0.1, 0.9, rows).astype(np.float32)
    predictions = Predictions(labels, predicted, confidence, confidence)
    tally, confusion, found = Tally(names, len(names)), Confusion(names), Examples(rows)
    tally.add(predictions)
    confusion.add(predictions)
    found.add(0, predictions)
    history = [{"epoch": 1, "train_loss": 1.0, "val_loss": 1.0, "val_accuracy": 0.5}]
    path = folder / "0.npy"
    np.save(path, np.zeros((rows, 8, 8, 1), np.uint8))
    plots.draw(tally, confusion, found, Shards([path]), history, folder)
    return {path.stem for path in folder.glob("*.png") if Image.open(path).getbbox()}


NAMES = ["$x^{$", "$x^2$", r"\frac{", "_a", "two\nlines", "x" * 5_000, "é" * 300, "a\0b", "", "%"]


def test_odd_names_of_classes_are_drawn_as_they_are(tmp_path):
    assert len(draw(tmp_path, NAMES)) == 5
    with rc_context(plots.STYLE):
        [left, *_] = plots._confusion_matrix(Confusion(NAMES)).axes
        shown = [label.get_text() for label in left.get_yticklabels()]
        assert shown[:5] == ["$x^{$", "$x^2$", r"\frac{", "_a", "two\N{REPLACEMENT CHARACTER}lines"]
        assert not any(label.get_parse_math() for label in left.get_yticklabels())
    assert max(map(len, shown)) == plots.NAME_LENGTH


def test_five_hundred_classes_are_drawn_in_seconds(tmp_path):
    began = process_time()
    assert len(draw(tmp_path, [f"class {number} $" for number in range(500)])) == 5
    assert process_time() - began < 30
