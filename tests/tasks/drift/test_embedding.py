"""Features of two samples: their distance, its yardstick, and what a network sees in images."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

import models
from models.network import Observed
from tasks.drift import compare
from tasks.drift.embedding import energy
from tests.tasks.toy_model import SETTINGS

SHAPE, CLASSES = (8, 8, 1), 4


def distances(reference: np.ndarray, incoming: np.ndarray) -> np.ndarray:
    """The real one first."""
    divisions = compare._divisions((len(reference), len(incoming)), seed=0)
    return energy(np.concatenate([reference, incoming]), divisions)


def score(reference: np.ndarray, incoming: np.ndarray) -> float:
    found = distances(reference, incoming)
    return found[0] / np.percentile(found, 99)


def test_the_distance_is_that_of_the_formula():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(30, 5)), rng.normal(1, 2, size=(20, 5))
    between, first, second = (
        cdist(a, b).mean() for a, b in ((one, other), (one, one), (other, other))
    )
    expected = ((2 * between - first - second) / (2 * between)) ** 0.5
    assert distances(one, other)[0] == pytest.approx(expected)
    assert distances(one * 7, other * 7)[0] == pytest.approx(expected)
    assert distances(one[:1], one[:1]).max() == 0


@pytest.mark.parametrize("incoming", [5, 40, 200])
def test_the_yardstick_seldom_raises_an_alarm_without_a_drift(incoming, monkeypatch):
    monkeypatch.setattr(compare, "DIVISIONS", 200)
    alarms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        places = rng.normal(0, 2, (5, 32))

        def draw(rows, rng=rng, places=places):
            return (places[rng.integers(5, size=rows)] + rng.normal(size=(rows, 32))).astype("f4")

        alarms += score(draw(120), draw(incoming)) > 1
    assert alarms <= 5


def photos(rng: np.random.Generator, rows: int, classes: range) -> np.ndarray:
    """Images of classes, each with a pattern of its own: uint8 (rows, *SHAPE)."""
    patterns = np.random.default_rng(0).integers(40, 140, (2 * CLASSES, *SHAPE))
    noise = rng.normal(0, 12, (rows, *SHAPE))
    return np.clip(patterns[rng.choice(classes, rows)] + noise, 0, 255).astype(np.uint8)


def test_a_network_sees_other_images_and_not_others_of_the_same_kind():
    torch.manual_seed(0)
    network = Observed(models.build("vit", SETTINGS, SHAPE, CLASSES).eval())

    def features(images):
        return network.answer(torch.from_numpy(images), "fp32")[1].numpy()

    rng, known = np.random.default_rng(1), range(CLASSES)
    reference = features(photos(rng, 200, known))
    assert score(reference, reference) == pytest.approx(0, abs=1e-4)
    same = photos(rng, 150, known)
    assert score(reference, features(same)) < 1.2
    others = {
        "noise": rng.integers(0, 256, same.shape, np.uint8),
        "inverted": 255 - same,
        "other classes": photos(rng, 150, range(CLASSES, 2 * CLASSES)),
    }
    for name, images in others.items():
        assert score(reference, features(images)) > 1.5, name
