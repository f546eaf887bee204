"""What the answers of two models for the same images say of their difference, and how surely.

Only the images on which the two differ count. A difference is positive where the challenger is the
better one, whatever the metric.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from typing import TYPE_CHECKING, Literal

from tasks.data.metrics import Predictions, Tally, metric_named, per_class

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Outcome = Literal["better", "not worse", "worse", "cannot tell"]

POWER = 0.8  # with which the smallest visible difference is seen
SEED = 0
# Of the bootstrap: its standard error is then known to 2 %, of a large split to 7 %.
RESAMPLES, FEWEST_RESAMPLES, RESAMPLED_ROWS = 1000, 100, 20_000_000


@dataclass(frozen=True)
class Pairs:
    """The answers of two models for the same images, in the same order.

    Attributes:
        names: The classes: those that both know, then those that only one of them knows.
        classes: How many of them both know; all labels are among these.
        challenger: The answers of the model that may be promoted.
        opponent: The answers of the model that it is compared with.
    """

    names: tuple[str, ...]
    classes: int
    challenger: Predictions
    opponent: Predictions

    @property
    def rows(self) -> int:
        """The number of images."""
        return len(self.challenger.labels)

    def take(self, rows: "NDArray[np.int64]") -> "Pairs":
        """The answers for some images, by their indices; an index may come more than once."""
        return Pairs(self.names, self.classes, self.challenger.take(rows), self.opponent.take(rows))


@dataclass(frozen=True)
class Difference:
    """By how much the challenger is better.

    Attributes:
        value: As measured.
        low: The lower limit; the true difference is below it with the probability of the level.
        high: The upper limit, in the same way.
        outcome: What they say.
        visible: The smallest difference that is seen with a probability of 80 %.
    """

    value: float
    low: float
    high: float
    outcome: Outcome
    visible: float


def level_of(number: int, level: float) -> float:
    """The share of an error rate that a comparison may spend.

    The shares of all comparisons, however many there are, add up to the level: the sum of 1/k² is
    pi²/6. So one of many challengers that are no better passes by luck in no more of the cases
    than one alone would (Bonferroni's inequality).

    Args:
        number: Of the comparison among those on the same images, from 1.
        level: The probability that one of them all is wrong.
    """
    return level * 6 / (pi * number) ** 2


def compare(pairs: Pairs, metric: str, margin: float, level: float) -> Difference:
    """Compares two models by one metric.

    Accuracy is compared exactly; every other metric by a bootstrap.

    Args:
        pairs: Their answers; at least one.
        metric: One that `metric_named` knows.
        margin: A challenger that is worse by less is not worse.
        level: The probability of an error on each side.
    """
    if metric == "accuracy":
        return _compare_accuracy(pairs, margin, level)
    value, error = bootstrap(pairs, metric)
    reach = _quantile(level) * error
    low, high = value - reach, value + reach
    outcome = _outcome(low > 0, low > -margin, high < 0)
    return Difference(value, low, high, outcome, (_quantile(level) + _quantile(1 - POWER)) * error)


def score(predictions: Predictions, pairs: Pairs, metric: str) -> float:
    """A metric of one of the two models."""
    tally = Tally(pairs.names, pairs.classes)
    tally.add(predictions)
    return metric_named(metric).of(tally, per_class(tally))


def only_one_correct(pairs: Pairs) -> tuple[int, int]:
    """The images that only the challenger classifies correctly, and those that only the other."""
    ours, theirs = (each.labels == each.predicted for each in (pairs.challenger, pairs.opponent))
    return int((ours & ~theirs).sum()), int((theirs & ~ours).sum())


def _compare_accuracy(pairs: Pairs, margin: float, level: float) -> Difference:
    gained, lost = only_one_correct(pairs)
    rows = pairs.rows
    low, high = score_interval(gained, lost, rows, level)
    # Connor (1987), equation 1, solved for the difference, with the share of images on which the
    # two models differ as it is here.
    share = max(gained + lost, 1) / rows
    visible = min(share, (_quantile(level) + _quantile(1 - POWER)) * sqrt(share / rows))
    outcome = compare_accuracies(gained, lost, rows, margin, level)
    return Difference((gained - lost) / rows, low, high, outcome, visible)


def compare_accuracies(gained: int, lost: int, rows: int, margin: float, level: float) -> Outcome:
    """What the answers of two models say of their accuracies.

    `better` and `worse` are by the exact test, `not worse` is by the score interval.

    Args:
        gained: Images that only the challenger classifies correctly.
        lost: Images that only the opponent classifies correctly.
        rows: All images.
        margin: A challenger that is worse by less is not worse.
        level: The probability of an error on each side.
    """
    return _outcome(
        mcnemar(gained, lost) <= level,
        _distance(gained, lost, rows, -margin) > _quantile(level),
        mcnemar(lost, gained) <= level,
    )


def _outcome(better: bool, not_worse: bool, worse: bool) -> Outcome:
    if better:
        return "better"
    if not_worse:
        return "not worse"
    return "worse" if worse else "cannot tell"


def mcnemar(gained: int, lost: int) -> float:
    """The exact one-sided test that a model is right more often than another.

    Source: McNemar (1947), Note on the sampling error of the difference between correlated
    proportions; with the binomial distribution itself in place of its approximation.

    Args:
        gained: Images that only this model classifies correctly.
        lost: Images that only the other classifies correctly.

    Returns:
        The probability of at least so many gained ones if both were equally good.
    """
    from scipy.stats import binom

    return float(binom.sf(gained - 1, gained + lost, 0.5))


def score_interval(gained: int, lost: int, rows: int, level: float) -> tuple[float, float]:
    """The limits of the difference of two accuracies on the same images.

    Source: Tango (1998), Equivalence test and confidence interval for the difference in proportions
    for the paired-sample design, equation 5.

    Args:
        gained: Images that only the challenger classifies correctly.
        lost: Images that only the opponent classifies correctly.
        rows: All images.
        level: The probability of an error on each side.
    """
    from scipy.optimize import brentq

    measured, quantile = (gained - lost) / rows, _quantile(level)

    def distance(difference: float) -> float:
        return _distance(gained, lost, rows, difference)

    def limit(edge: float, wanted: float, outside: Callable[[float], bool]) -> float:
        if outside(distance(edge)):
            return round(edge)
        return float(brentq(lambda each: distance(each) - wanted, edge, measured))

    edge = 1 - 1e-12
    return (
        limit(-edge, quantile, lambda found: found < quantile),
        limit(edge, -quantile, lambda found: found > -quantile),
    )


def _distance(gained: int, lost: int, rows: int, difference: float) -> float:
    """How many standard errors the measured difference is above an assumed one (Tango, 1998)."""
    # The most likely share of images that only the opponent has right, given the difference.
    b = -gained - lost + (2 * rows - gained + lost) * difference
    c = -lost * difference * (1 - difference)
    share = (sqrt(max(b * b - 8 * rows * c, 0.0)) - b) / (4 * rows)
    variance = rows * (2 * share + difference * (1 - difference))
    return (gained - lost - rows * difference) / sqrt(variance) if variance > 0 else 0.0


def bootstrap(pairs: Pairs, metric: str) -> tuple[float, float]:
    """The difference of any metric, and its standard error.

    The images are drawn again with replacement, within each class, and both models are scored on
    the same ones. Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapters 6
    and 8. The draws are the same each time.

    Returns:
        The difference, positive if the challenger is better, and its standard error.
    """
    import numpy as np

    random = np.random.default_rng(SEED)
    labels = pairs.challenger.labels
    by_class = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    sizes = np.repeat(counts, counts)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    resamples = max(FEWEST_RESAMPLES, min(RESAMPLES, RESAMPLED_ROWS // pairs.rows))
    differences = []
    for _ in range(resamples):
        drawn = by_class[starts + (random.random(pairs.rows) * sizes).astype(np.int64)]
        differences.append(_difference(pairs.take(drawn), metric))
    return _difference(pairs, metric), float(np.std(differences, ddof=1))


def _difference(pairs: Pairs, metric: str) -> float:
    ours, theirs = (score(each, pairs, metric) for each in (pairs.challenger, pairs.opponent))
    return theirs - ours if metric_named(metric).lower_is_better else ours - theirs


def _quantile(level: float) -> float:
    """How many standard errors away an error has the probability of the level."""
    from scipy.stats import norm

    return float(norm.isf(level))
