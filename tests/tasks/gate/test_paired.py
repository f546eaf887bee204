"""The statistics of the gate, against published tests and limits, and by simulation."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from tasks.data.metrics import Predictions
from tasks.gate import bootstrap
from tasks.gate.bootstrap import Pairs, draws
from tasks.gate.paired import COMPARABLE, compare, holm, p_value

NAMES = ("a", "b")


def pairs(gained: int, lost: int, both: int, neither: int = 0) -> Pairs:
    """Answers for as many images, of two classes in turns, with equal confidence."""
    rows = gained + lost + both + neither
    labels = np.arange(rows) % 2
    ours = np.repeat([True, False, True, False], [gained, lost, both, neither])
    theirs = np.repeat([False, True, True, False], [gained, lost, both, neither])
    both = (answers(labels, correct) for correct in (ours, theirs))
    return Pairs(NAMES, 2, *both, np.arange(rows))


def answers(labels, correct, likelihood=None) -> Predictions:
    confidence = np.full(len(labels), 0.75, np.float32)
    if likelihood is None:
        likelihood = np.where(correct, 0.75, 0.25).astype(np.float32)
    return Predictions(labels, np.where(correct, labels, 1 - labels), confidence, likelihood)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (5, 0), (7, 1), (30, 12)])
def test_better_is_decided_by_mcnemars_exact_test(gained, lost):
    exact = binom.sf(gained - 1, gained + lost, 0.5)
    assert p_value(gained, lost, 100, 0.0) == pytest.approx(exact)


@pytest.mark.parametrize("lost", [0, 3])
def test_where_nothing_was_gained_the_limit_is_that_of_clopper_and_pearson(lost):
    both = pairs(0, lost, 100 - lost)
    exact = binomtest(lost, 100).proportion_ci(0.9, method="exact").high  # 5 % on this side
    assert compare(both, "accuracy", 0.01, 0.05)["low"] == pytest.approx(-exact)


@pytest.mark.parametrize("metric", [*COMPARABLE, "f1[b]"])
def test_nothing_is_sure_where_nothing_was_seen_to_differ(metric):
    found = compare(pairs(0, 0, 40), metric, 0.01, 0.05)
    assert (found["difference"], found["outcome"]) == (0.0, "cannot tell")
    assert found["low"] < -0.01 < 0.01 < found["high"]


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
        (4, 0, 360, 0.0, "cannot tell"),  # 1/16
        (0, 4, 360, 0.01, "cannot tell"),
        (0, 5, 355, 0.01, "worse"),  # 1/32
        (7, 0, 0, 0.01, "better"),
        (0, 7, 0, 0.01, "worse"),
    ],
)
def test_the_outcomes_of_a_comparison_of_accuracies(gained, lost, both, margin, outcome):
    found = compare(pairs(gained, lost, both), "accuracy", margin, 0.05)
    assert found["outcome"] == outcome
    assert found["difference"] == pytest.approx((gained - lost) / (gained + lost + both))
    assert -1 <= found["low"] <= found["difference"] <= found["high"] <= 1
    assert found["low"] < found["high"]
    assert found["p_worse"] == p_value(lost, gained, gained + lost + both, 0.0)


@pytest.mark.parametrize(("gained", "lost", "margin"), [(9, 1, 0.0), (0, 0, 0.02), (1, 9, 0.0)])
def test_a_claim_holds_at_its_level(gained, lost, margin):
    """It is wrong with the probability of the level then, and no more is promised."""
    two = pairs(gained, lost, 90)
    claim = {9: "better", 0: "not worse", 1: "worse"}[gained]
    rows = gained + lost + 90
    level = p_value(*((lost, gained) if claim == "worse" else (gained, lost)), rows, -margin)
    assert compare(two, "accuracy", margin, level)["outcome"] == claim
    assert compare(two, "accuracy", margin, level * (1 - 1e-9))["outcome"] != claim


@pytest.mark.parametrize(
    ("claims", "hold"),
    [
        ({"a": 0.04, "b": 0.01, "c": 0.012, "d": 0.5}, {"b", "c"}),  # 0.04 is above 0.05/2
        ({"a": 0.012, "b": 0.02, "c": 0.05}, {"a", "b", "c"}),
        ({"a": 0.04}, {"a"}),
        ({}, set()),
    ],
)
def test_the_worst_of_several_claims_has_to_be_the_surest(claims, hold):
    assert holm(claims, 0.05) == hold


def test_a_model_that_is_worse_by_the_margin_passes_no_oftener_than_the_level():
    rows, level, margin = 360, 0.03, 0.02
    shares = [(0.1 - margin) / 2, (0.1 + margin) / 2, 0.9]
    drawn = np.random.default_rng(rows).multinomial(rows, shares, 4000).tolist()
    passed = [p_value(gained, lost, rows, -margin) <= level for gained, lost, _ in drawn]
    assert np.mean(passed) < 0.037  # 4,000 draws of 0.03 give 0.0354 at most in 97.5 %


@pytest.mark.parametrize("metric", ["macro_recall", "f1[a]"])
def test_the_outcomes_of_a_comparison_of_drawn_differences(metric):
    given = [((30, 5, 325), 0.01), ((6, 6, 348), 0.06), ((5, 30, 325), 0.01), ((6, 6, 348), 0.01)]
    found = [compare(pairs(*counts), metric, margin, 0.05) for counts, margin in given]
    outcomes = [comparison["outcome"] for comparison in found]
    assert outcomes == ["better", "not worse", "worse", "cannot tell"]
    assert found[2]["p_worse"] < 0.001 < 0.99 < found[0]["p_worse"]


def skewed() -> Pairs:
    """Answers for three classes of which one is rare; some are a class that the images lack."""
    random = np.random.default_rng(1)
    labels = random.choice(3, 120, p=[0.6, 0.3, 0.1])
    likelihood = random.uniform(0.2, 0.9, (2, 120)).astype(np.float32)
    predicted = (
        np.where(random.random(120) < right, labels, random.choice(4, 120, p=[0.1, 0.5, 0.3, 0.1]))
        for right in (0.9, 0.7)
    )
    models = (
        Predictions(labels, answer, likely, likely)
        for answer, likely in zip(predicted, likelihood, strict=True)
    )
    return Pairs(("a", "b", "c", "old"), 3, *models, np.arange(120))


@pytest.mark.parametrize(
    ("metric", "difference", "low", "high", "p_worse"),
    [
        ("accuracy", 0.175000, 0.085992, 0.261178, 0.999904),
        ("macro_precision", 0.206110, 0.092739, 0.306315, 1.000000),
        ("macro_recall", 0.242696, 0.073449, 0.360160, 1.000000),
        ("macro_f1", 0.235550, 0.103353, 0.340985, 1.000000),
        ("log_loss", 0.122350, -0.292746, 0.528499, 0.999000),
        ("recall[c]", 0.444444, -0.024490, 0.748632, 1.000000),
        ("precision[b]", 0.146107, 0.007154, 0.281329, 0.988301),
        ("f1[c]", 0.447811, 0.144079, 0.670246, 1.000000),
    ],
)
def test_a_comparison_gives_the_figures_that_it_always_gave(metric, difference, low, high, p_worse):
    found = compare(skewed(), metric, 0.02, 0.05)
    assert found.pop("outcome")
    assert [*found.values()] == pytest.approx((difference, low, high, p_worse), abs=1e-6)


@pytest.mark.parametrize("metric", ["accuracy", "macro_recall", "log_loss"])
def test_groups_are_weighed_with_an_unseen_one_of_the_mean_size(metric):
    """Against a plain calculation, image by image."""
    both = replace(pairs(9, 5, 40, 6), groups=np.repeat([7, 3, 5, 1], [30, 20, 8, 2]))
    weights = np.random.default_rng(bootstrap.SEED).standard_gamma(np.ones(5), (bootstrap.DRAWS, 5))
    of_image = weights[:, np.searchsorted([1, 3, 5, 7], both.groups)]
    unseen = 15 * weights[:, 4]
    right, other = (each.labels == each.predicted for each in (both.challenger, both.opponent))
    gains, worst = right.astype(int) - other, -1.0
    if metric == "log_loss":
        gains = np.log(both.challenger.likelihood / both.opponent.likelihood)
        least = np.finfo(np.float32).eps  # as which a smaller probability counts
        worst = np.log(least) - np.log1p(-least)

    def mean(images, extra):
        """The mean of some of the images, and of the unseen ones or not."""
        total = of_image[:, images] @ gains[images] + extra * unseen * worst
        return total / (of_image[:, images].sum(axis=1) + extra * unseen)

    expected = [mean(both.groups > 0, 1)]
    if metric == "macro_recall":  # the unseen images are of the class where they weigh most
        classes = [both.challenger.labels == label for label in (0, 1)]
        expected = [(mean(one, 1) + mean(two, 0)) / 2 for one, two in (classes, classes[::-1])]
    found = draws(both, metric)
    assert any(found == pytest.approx(each, rel=1e-4) for each in expected)
