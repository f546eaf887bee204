"""The statistics of the gate, against published tests and limits, and by simulation."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

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
    exact = 1.0
    if gained + lost:
        exact = binomtest(gained, gained + lost, 0.5, alternative="greater").pvalue
    assert p_value(gained, lost, 100, 0.0) == pytest.approx(exact)


@pytest.mark.parametrize("lost", [0, 3])
def test_where_nothing_was_gained_the_limit_is_that_of_clopper_and_pearson(lost):
    both = pairs(0, lost, 100 - lost)
    exact = binomtest(lost, 100).proportion_ci(0.9, method="exact").high  # 5 % on this side
    assert compare(both, "accuracy", 0.01, 0.05)["low"] == pytest.approx(-exact)


@pytest.mark.parametrize("metric", [*COMPARABLE, "recall[a]", "f1[b]", "precision[a]"])
def test_it_is_antisymmetric(metric):
    both = pairs(12, 5, 150, 33)
    one, other = (compare(each, metric, 0.01, 0.03) for each in (both, both.swapped))
    assert (one["low"], one["high"]) == (
        pytest.approx(-other["high"]),
        pytest.approx(-other["low"]),
    )
    assert one["low"] < one["difference"] < one["high"]


def test_the_draws_of_an_accuracy_agree_with_its_probability():
    """The mean recall of one class is the accuracy, in one case drawn and in the other computed."""
    both = pairs(12, 5, 150, 33)
    one_class = Pairs(
        ("a", "b"), 1, *(
            answers(np.zeros(200, np.int64), each.labels == each.predicted)
            for each in (both.challenger, both.opponent)
        ), np.arange(200)
    )  # fmt: skip
    drawn = draws(one_class, "macro_recall")
    for difference in (-0.02, 0.0, 0.05):
        computed = p_value(12, 5, 200, difference)
        assert np.mean(drawn <= difference) == pytest.approx(computed, abs=0.02)


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


def test_the_worst_of_several_claims_has_to_be_the_surest():
    claims = {"a": 0.04, "b": 0.01, "c": 0.012, "d": 0.5}
    assert holm(claims, 0.05) == {"b", "c"}  # 0.05/4 and 0.05/3; then 0.04 is above 0.05/2
    assert holm({"a": 0.012, "b": 0.02, "c": 0.05}, 0.05) == {"a", "b", "c"}
    assert holm({"a": 0.04}, 0.05) == {"a"}
    assert holm({}, 0.05) == set()


def test_a_model_that_is_worse_by_the_margin_passes_no_oftener_than_the_level():
    rows, level, margin = 360, 0.03, 0.02
    random = np.random.default_rng(rows)
    shares = [(0.1 - margin) / 2, (0.1 + margin) / 2, 0.9]
    passed = []
    for gained, lost, _ in random.multinomial(rows, shares, 4000):
        passed.append(p_value(int(gained), int(lost), rows, -margin) <= level)
    assert np.mean(passed) < 0.037  # 4,000 draws of 0.03 give 0.0354 at most in 97.5 %


def test_the_metric_of_a_class_is_of_its_images():
    labels = np.array([0] * 95 + [1] * 5)
    models = answers(labels, labels == 0), answers(labels, np.ones(100, bool))
    both = Pairs(NAMES, 2, *models, np.arange(100))
    assert compare(both, "recall[b]", 0.01, 0.05)["difference"] == -1.0
    assert compare(both, "recall[a]", 0.01, 0.05)["difference"] == 0.0
    assert compare(both, "precision[a]", 0.01, 0.05)["difference"] == pytest.approx(-0.05)
    assert both.score(both.challenger, "precision[a]") == 0.95
    assert both.of_class("b").rows == 5
    assert both.of_class("nobody").rows == 0


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
    expected = (difference, low, high, p_worse)
    assert [*found.values()] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("gained", "lost", "outcome"), [(5, 0, "better"), (0, 5, "worse")])
def test_a_claim_holds_where_its_probability_is_the_level(gained, lost, outcome):
    assert compare(pairs(gained, lost, 355), "accuracy", 0.0, 1 / 32)["outcome"] == outcome


@pytest.mark.parametrize("metric", [*COMPARABLE, "recall[c]", "f1[c]"])
def test_copies_of_images_say_as_much_as_the_images(metric):
    """Five copies of each image, in any order, give the limits of the images alone."""
    alone = skewed()
    rows = np.random.default_rng(0).permutation(np.repeat(np.arange(alone.rows), 5))
    found = compare(alone.take(rows), metric, 0.02, 0.05)
    expected = compare(alone, metric, 0.02, 0.05)
    assert found["outcome"] == expected["outcome"]
    for limit in ("difference", "low", "high", "p_worse"):
        assert found[limit] == pytest.approx(expected[limit], abs=0.03), limit
    careless = compare(replace(alone.take(rows), groups=np.arange(600)), metric, 0.02, 0.05)
    assert careless["low"] > found["low"] + 0.02


@pytest.mark.parametrize("metric", ["accuracy", "macro_recall", "log_loss"])
def test_groups_are_weighed_with_an_unseen_one_of_the_mean_size(metric):
    """Against a plain calculation, group by group."""
    both = replace(pairs(9, 5, 40, 6), groups=np.repeat([7, 3, 5, 1], [30, 20, 8, 2]))
    found = draws(both, metric)[:50]
    weights = np.random.default_rng(bootstrap.SEED).standard_gamma(np.ones(5), (bootstrap.DRAWS, 5))
    right, other = (each.labels == each.predicted for each in (both.challenger, both.opponent))
    log_ratio = np.log(both.challenger.likelihood / both.opponent.likelihood)
    least = np.finfo(np.float32).eps  # as which a smaller probability counts
    worst = np.log(least) - np.log1p(-least)
    for drawn, weighed in zip(found, weights, strict=False):
        of_image = weighed[np.searchsorted([1, 3, 5, 7], both.groups)]
        unseen = 15 * weighed[-1]
        if metric == "accuracy":
            total = of_image @ (right.astype(int) - other) - unseen
            assert drawn == pytest.approx(total / (of_image.sum() + unseen))
        elif metric == "log_loss":
            total = of_image @ log_ratio + unseen * worst
            assert drawn == pytest.approx(total / (of_image.sum() + unseen), rel=1e-4)
        else:
            each = []  # the unseen images are of the class where they weigh most
            for label in (0, 1):
                of_class = [of_image * (both.challenger.labels == name) for name in (0, 1)]
                more = [unseen * (label == name) for name in (0, 1)]
                gains = [
                    (part @ (right.astype(int) - other) - extra) / (part.sum() + extra)
                    for part, extra in zip(of_class, more, strict=True)
                ]
                each.append(np.mean(gains))
            assert drawn == pytest.approx(each[0]) or drawn == pytest.approx(each[1])


@pytest.mark.parametrize("correlation", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("metric", ["accuracy", "macro_recall"])
def test_equal_models_are_better_no_oftener_than_the_level_where_images_go_together(
    metric, correlation, monkeypatch
):
    """A hundred groups of ten, on a tenth of whose images two equal models differ."""
    monkeypatch.setattr(bootstrap, "DRAWS", 500)
    monkeypatch.setattr(bootstrap, "FEWEST_DRAWS", 500)
    random, groups = np.random.default_rng(7), np.repeat(np.arange(100), 10)
    labels, better = np.arange(1000) % 2, 0
    for _ in range(150):
        of_group, own = (random.choice(3, size, p=[0.05, 0.05, 0.9]) for size in (100, 1000))
        shares = random.random(1000) < np.sqrt(correlation)
        kind = np.where(shares, of_group[groups], own)
        models = (answers(labels, kind != lost) for lost in (0, 1))
        better += (
            compare(Pairs(NAMES, 2, *models, groups), metric, 0.0, 0.05)["outcome"] == "better"
        )
    assert better <= 12  # 150 draws of 0.05 give 12 at most in 95 %


def test_few_groups_are_not_sure_however_many_images_they_have():
    both = pairs(0, 0, 900)
    assert compare(both, "accuracy", 0.05, 0.05)["outcome"] == "not worse"
    groups = np.repeat(np.arange(30), 30)
    found = compare(replace(both, groups=groups), "accuracy", 0.05, 0.05)
    assert found["outcome"] == "cannot tell"
    assert found["low"] == pytest.approx(binomtest(0, 30).proportion_ci(0.9).low - 0.095, abs=0.005)
