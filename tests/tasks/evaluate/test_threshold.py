"""The confidence from which on a model accepts its answers."""

from functools import cache

import numpy as np
import pytest

from tasks.data.metrics import ACCEPTS_NOTHING, is_accepted, wilson
from tasks.evaluate.step import STEPS, shortfall, threshold


def answers(rows: int, seed: int = 0):
    """Calibrated predictions: their confidences, and whether each is right."""
    random = np.random.default_rng(seed)
    confidence = random.beta(6, 1, rows).astype(np.float32)
    return confidence, random.random(rows) < confidence


@pytest.mark.parametrize("wanted", [0.5, 0.88, 0.92])
def test_it_is_the_lowest_one_that_the_precision_is_shown_for(wanted):
    confidence, correct = answers(300)
    lowest, shown = cache(lambda right, accepted: wilson(right, accepted)[0]), []
    for step in range(STEPS + 1):
        accepted = is_accepted(confidence, step / STEPS)
        count = int(accepted.sum())
        if count and lowest(int(correct[accepted].sum()), count) >= wanted:
            shown.append(step / STEPS)
    assert threshold(confidence, correct, wanted) == shown[0]
    assert (shown[0] == 0) is (wanted == 0.5)  # where all answers are good enough, all count


def test_a_precision_that_was_only_measured_by_chance_is_seldom_promised():
    random, wanted, missed = np.random.default_rng(1), 0.95, 0
    large = np.sort(random.beta(6, 1, 1_000_000))
    above = np.cumsum(large[::-1])[::-1] / np.arange(len(large), 0, -1)  # the precision from there
    for seed in range(200):
        found = threshold(*answers(1000, seed), wanted)
        if found <= 1:
            missed += above[min(np.searchsorted(large, found), len(large) - 1)] < wanted
    assert 0 < missed <= 0.05 * 200


def test_what_cannot_be_shown_is_told():
    assert shortfall(0.98, 0.8731, 1000) is None
    assert shortfall(None, None, 1000) is None
    sentence = shortfall(0.98, ACCEPTS_NOTHING, 150)
    assert "accepts no answer: evaluate.min_precision 0.98" in sentence
    assert "If all 150 validation images were right, they would show 0.975" in sentence
