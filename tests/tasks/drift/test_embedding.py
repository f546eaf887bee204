"""The distance of the features of two samples."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from tasks.drift.embedding import energy


def distance(reference: np.ndarray, incoming: np.ndarray) -> float:
    is_incoming = np.arange(len(reference) + len(incoming)) >= len(reference)
    return energy(np.concatenate([reference, incoming]), is_incoming[None])[0]


def test_the_distance_is_that_of_the_formula():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(30, 5)), rng.normal(1, 2, size=(20, 5))
    between, first, second = (
        cdist(a, b).mean() for a, b in ((one, other), (one, one), (other, other))
    )
    expected = ((2 * between - first - second) / (2 * between)) ** 0.5
    assert distance(one, other) == pytest.approx(expected)
    assert distance(one * 7, other * 7) == pytest.approx(expected)
    assert distance(one[:1], one[:1]) == 0
