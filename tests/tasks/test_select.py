"""Which images are chosen, among some whose embeddings and answers are made up."""

import numpy as np
import pytest

from tasks import select


def on_circle(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_the_unsure_the_new_and_the_different_are_chosen():
    known = on_circle(0, 5, 10)
    asked = on_circle(10.1, 90, 91, 180, 270)
    sure, unsure = [0.99, 0.01], [0.55, 0.45]
    probabilities = np.array([unsure, unsure, unsure, sure, unsure], np.float32)
    distances = select.nearest(asked, known)
    chosen = select.choose(probabilities, asked, distances, count=5, closest=0.05)
    # 270 is the farthest of those of which the model is unsure, then 91. After these, 180 is far
    # from both, and 90 is so like 91 that it tells nothing; 10.1 is in the data already.
    assert chosen.tolist() == [4, 2, 3]
    assert select.choose(probabilities, asked, distances, count=2, closest=0.05).tolist() == [4, 2]


def test_where_the_model_is_sure_of_all_images_the_newest_are_chosen():
    known, asked = on_circle(0), on_circle(20, 90, 45)
    sure = np.array([[1, 0]] * 3, np.float32)
    chosen = select.choose(sure, asked, select.nearest(asked, known), count=2, closest=0.05)
    assert chosen.tolist() == [1, 2]


def test_distances_are_those_of_the_nearest(monkeypatch):
    monkeypatch.setattr(select, "_ROWS", 2)
    known, asked = on_circle(0, 60, 180), on_circle(0, 90, 120)
    assert select.nearest(asked, known) == pytest.approx(
        [0, 2 * np.sin(np.radians(15)), 1], abs=1e-3
    )
    monkeypatch.setattr(select, "SAMPLE", 2)
    found = select.neighbours(known)
    every = {0: 1.0, 60: 1.0, 180: 2 * np.sin(np.radians(60))}
    sample = np.random.default_rng(0).permutation(3)[:2]
    assert found == pytest.approx([[*every.values()][number] for number in sample], abs=1e-3)
