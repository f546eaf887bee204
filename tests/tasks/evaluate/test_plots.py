from time import process_time

import numpy as np
import pytest
from PIL import Image

from tasks.data.metrics import Predictions, Tally
from tasks.data.shards import Shards
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


def draw(folder, names, rows=200):
    """Draws the plots of a model that is right about half of the images."""
    random = np.random.default_rng(0)
    labels = random.integers(0, len(names), rows)
    predicted = np.where(random.random(rows) < 0.5, labels, random.integers(0, len(names), rows))
    confidence = random.uniform(0.1, 0.9, rows)
    path = folder / "0.npy"
    np.save(path, np.zeros((rows, 8, 8, 1), np.uint8))
    counts = tally(names, labels, predicted, confidence)
    plots.draw(counts, Shards([path]), folder)
    return {path.stem for path in folder.glob("*.png") if Image.open(path).getbbox()}


NAMES = ["$x^{$", "$x^2$", r"\frac{", "_a", "two\nlines", "x" * 5_000, "é" * 300, "a\0b", "", "%"]


@pytest.mark.parametrize("names", [NAMES, [f"class {number} $" for number in range(500)]])
def test_odd_and_many_names_of_classes_are_drawn_in_seconds(tmp_path, names):
    began = process_time()
    assert len(draw(tmp_path, names)) == 3
    assert process_time() - began < 30
