"""The statistics of the gate, against published examples, against scipy, and by simulation."""

from math import pi

import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap

from tasks.data.metrics import Predictions
from tasks.gate.paired import (
    Pairs,
    bootstrap,
    compare,
    level_of,
    mcnemar,
    only_one_correct,
    score,
    score_interval,
)

NAMES = ("a", "b")


def pairs(gained: int, lost: int, both: int, neither: int = 0) -> Pairs:
    """Answers for as many images, of two classes in turns, with equal confidence."""
    rows = gained + lost + both + neither
    labels = np.arange(rows) % 2
    ours = np.repeat([True, False, True, False], [gained, lost, both, neither])
    theirs = np.repeat([False, True, True, False], [gained, lost, both, neither])
    return Pairs(NAMES, 2, *(answers(labels, correct) for correct in (ours, theirs)))


def answers(labels, correct, likelihood=None) -> Predictions:
    confidence = np.full(len(labels), 0.75, np.float32)
    if likelihood is None:
        likelihood = np.where(correct, 0.75, 0.25).astype(np.float32)
    return Predictions(labels, np.where(correct, labels, 1 - labels), confidence, likelihood)


def test_the_images_on_which_only_one_is_right_are_counted():
    assert only_one_correct(pairs(5, 3, 100, 7)) == (5, 3)


def test_mcnemars_test_is_the_tail_of_the_binomial_distribution():
    assert mcnemar(0, 0) == 1
    assert mcnemar(5, 0) == pytest.approx(1 / 32)
    # Fagerland, Lydersen and Laake (2014), Recommended tests and confidence intervals for paired
    # binomial proportions: 1 and 7 of 21 children; the exact conditional test, both sides.
    assert 2 * mcnemar(7, 1) == pytest.approx(0.070, abs=5e-4)


def test_the_interval_is_that_of_a_published_example():
    """The same 21 children: Tango's interval of 95 %."""
    low, high = score_interval(1, 7, 21, 0.025)
    assert (low, high) == (pytest.approx(-0.517, abs=5e-4), pytest.approx(-0.026, abs=5e-4))


@pytest.mark.parametrize(
    ("gained", "lost", "rows"), [(0, 0, 10), (0, 0, 360), (7, 0, 7), (0, 5, 5)]
)
def test_the_interval_exists_at_the_edges(gained, lost, rows):
    low, high = score_interval(gained, lost, rows, 0.03)
    assert -1 <= low <= (gained - lost) / rows <= high <= 1
    assert low < high


def test_it_is_antisymmetric():
    low, high = score_interval(12, 5, 200, 0.03)
    other_low, other_high = score_interval(5, 12, 200, 0.03)
    assert (low, high) == (pytest.approx(-other_high), pytest.approx(-other_low))


@pytest.mark.parametrize(
    ("gained", "lost", "both", "margin", "outcome"),
    [
        (30, 5, 325, 0.01, "better"),
        (5, 30, 325, 0.01, "worse"),
        (6, 6, 348, 0.01, "cannot tell"),
        (6, 6, 348, 0.05, "not worse"),
        (0, 0, 360, 0.01, "not worse"),
        (0, 0, 100, 0.01, "cannot tell"),
        (30, 5, 325, 0.0, "better"),
        (0, 0, 360, 0.0, "cannot tell"),
    ],
)
def test_the_outcomes_of_a_comparison_of_accuracies(gained, lost, both, margin, outcome):
    found = compare(pairs(gained, lost, both), "accuracy", margin, 0.05)
    assert found.outcome == outcome
    assert found.value == pytest.approx((gained - lost) / (gained + lost + both))
    assert found.low <= found.value <= found.high


def test_a_lower_loss_is_better():
    labels = np.arange(400) % 2
    noise = np.random.default_rng(0).uniform(-0.02, 0.02, (2, 400))
    correct = np.ones(400, bool)
    both = Pairs(
        NAMES,
        2,
        answers(labels, correct, (0.9 + noise[0]).astype(np.float32)),
        answers(labels, correct, (0.8 + noise[1]).astype(np.float32)),
    )
    found = compare(both, "log_loss", 0.01, 0.05)
    assert found.outcome == "better"
    assert found.value == pytest.approx(np.log(0.9 / 0.8), abs=0.003)
    other = Pairs(NAMES, 2, both.opponent, both.challenger)
    assert compare(other, "log_loss", 0.01, 0.05).outcome == "worse"


def test_the_standard_error_is_that_of_scipys_paired_bootstrap():
    random = np.random.default_rng(0)
    labels = np.zeros(300, np.int64)  # of one class: scipy draws from all images alike
    likelihood = random.uniform(0.2, 0.9, (2, 300)).astype(np.float32)
    correct = np.ones(300, bool)
    both = Pairs(NAMES, 1, *(answers(labels, correct, each) for each in likelihood))
    value, error = bootstrap(both, "log_loss")
    assert value == pytest.approx(
        score(both.opponent, both, "log_loss") - score(both.challenger, both, "log_loss")
    )
    theirs = scipy_bootstrap(
        (np.log(likelihood[0]), np.log(likelihood[1])),
        lambda a, b: a.mean() - b.mean(),
        paired=True, vectorized=False, n_resamples=2000, method="basic", rng=1,
    )  # fmt: skip
    assert error == pytest.approx(theirs.standard_error, rel=0.08)


def test_each_class_keeps_its_images_when_they_are_drawn_again():
    """The recall of the classes then has no spread from the number of their images."""
    labels = np.array([0] * 95 + [1] * 5)
    correct = np.array([True] * 95 + [False] * 5)
    both = Pairs(NAMES, 2, answers(labels, correct), answers(labels, np.ones(100, bool)))
    assert bootstrap(both, "macro_recall") == (-0.5, 0.0)
    assert bootstrap(both, "recall[b]") == (-1.0, 0.0)


def test_a_comparison_is_the_same_each_time():
    both = pairs(20, 10, 150, 20)
    assert compare(both, "macro_f1", 0.01, 0.03) == compare(both, "macro_f1", 0.01, 0.03)


def test_all_comparisons_together_spend_no_more_than_the_level():
    levels = [level_of(number, 0.05) for number in range(1, 10_001)]
    assert levels[0] == pytest.approx(0.05 * 6 / pi**2)
    assert levels == sorted(levels, reverse=True)
    assert 0.0499 < sum(levels) < 0.05


@pytest.mark.parametrize("rows", [360, 2000])
def test_a_difference_of_the_visible_size_is_seen_in_four_of_five_cases(rows):
    """Of models that differ on 10 % of the images."""
    random, level = np.random.default_rng(rows), 0.03
    visible = compare(
        pairs(rows // 20, rows // 20, rows - rows // 10), "accuracy", 0, level
    ).visible
    better = (0.1 + visible) / 2
    differing = random.binomial(rows, 0.1, 4000)
    gained = random.binomial(differing, better / 0.1)
    seen = np.mean(
        [mcnemar(int(g), int(d - g)) <= level for g, d in zip(gained, differing, strict=True)]
    )
    assert 0.74 < seen < 0.86


@pytest.mark.parametrize("rows", [360, 2000])
def test_a_model_that_is_worse_by_the_margin_passes_no_oftener_than_the_level(rows):
    random, level, margin = np.random.default_rng(rows), 0.03, 0.02
    shares = [(0.1 - margin) / 2, (0.1 + margin) / 2, 0.9]
    passed = []
    for gained, lost, _ in random.multinomial(rows, shares, 4000):
        low, _ = score_interval(int(gained), int(lost), rows, level)
        passed.append(low > -margin)
    assert np.mean(passed) < 0.037  # 4,000 draws of 0.03 give 0.0354 at most in 97.5 %
