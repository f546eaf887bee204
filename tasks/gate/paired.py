"""Compares the answers of two models for the same images, and says how sure the difference is.

One method serves every metric and every claim. The images that were seen are weighed at random, as
in the Bayesian bootstrap (Rubin, 1981), together with one image that was not seen and that is the
worst for the claim: the opponent has it right, and the challenger has it wrong. A claim such as
"the difference is above -margin" holds if the weighed difference contradicts it with no more than
the probability of the level.

Groups of images that belong together are weighed as one (`bootstrap.py`).

For the mean of a bounded quantity this is Gaffke's bound (Gaffke, 2005; Learned-Miller and Thomas,
2019, "A new confidence interval for the mean of a bounded random variable"). For accuracy it gives
the exact test of McNemar (1947) for the claim "better", and the exact limit of Clopper and Pearson
(1934) where no image was gained. The unseen image is what keeps a comparison from being sure when
nothing was seen to differ.

A difference is positive where the challenger is the better one, whatever the metric.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from retrain.step import Facts
from tasks.data.metrics import LOWER_IS_BETTER, split_name
from tasks.gate.bootstrap import Pairs, draws

# The metrics by which two models can be compared, beside those of one class. The worst class is
# another one in each draw, and the calibration error of few images is biased upwards: for these two
# no limit holds its level.
COMPARABLE = ("accuracy", "macro_precision", "macro_recall", "macro_f1", "log_loss")

QUANTILES = 2000  # of the share of differing images; by them the probability is averaged


def compare(pairs: Pairs, metric: str, margin: float, level: float) -> Facts:
    """Compares two models by one metric.

    Args:
        pairs: Their answers; for a metric of one class, at least one of its images.
        metric: One of `COMPARABLE`, or one of a class, such as `recall[cat]`.
        margin: A challenger that is worse by less is not worse.
        level: The probability of an error on each side.

    Returns:
        `difference`, by how much the challenger is better, as measured; `low` and `high`, the
        limits beyond which the true difference is with the probability of the level, on each side;
        `outcome`, what they say: `better`, `not worse`, `worse` or `cannot tell`; and `p_worse`,
        the probability of such answers if the challenger were no worse, at most.
    """
    kind, label = split_name(metric)
    if kind == "recall" and label is not None:  # the accuracy of the images of the class
        pairs, metric = pairs.of_class(label), "accuracy"
    if metric == "accuracy" and len(pairs.group_sizes) == pairs.rows:
        return _compare_accuracy(pairs, margin, level)

    lower, upper = draws(pairs, metric), -draws(pairs.swapped, metric)

    def probability(claims: NDArray[np.bool_]) -> float:
        return float((1 + claims.sum()) / (1 + len(claims)))

    challenger, opponent = (
        pairs.score(answers, metric) for answers in (pairs.challenger, pairs.opponent)
    )
    p_worse = probability(upper >= 0)
    better, not_worse = (probability(lower <= limit) for limit in (0, -margin))
    return {
        "difference": opponent - challenger if metric in LOWER_IS_BETTER else challenger - opponent,
        "low": float(np.quantile(lower, level)),
        "high": float(np.quantile(upper, 1 - level)),
        "outcome": _outcome(better, not_worse, p_worse, level),
        "p_worse": p_worse,
    }


def _compare_accuracy(pairs: Pairs, margin: float, level: float) -> Facts:
    (gained, lost), rows = pairs.only_one_correct, pairs.rows
    better, not_worse = (p_value(gained, lost, rows, limit) for limit in (0.0, -margin))
    p_worse = p_value(lost, gained, rows, 0.0)
    return {
        "difference": (gained - lost) / rows,
        "low": lower_limit(gained, lost, rows, level),
        "high": -lower_limit(lost, gained, rows, level),
        "outcome": _outcome(better, not_worse, p_worse, level),
        "p_worse": p_worse,
    }


def p_value(gained: int, lost: int, rows: int, difference: float) -> float:
    """The probability that the true difference of two accuracies is at most an assumed one.

    The weights of the images that were lost (and the unseen one), of those that were gained and of
    the others have a Dirichlet distribution. The sum of the first two has a beta distribution, and
    so has the share of the gained ones in it, independently: the probability is averaged over the
    quantiles of the sum.

    Args:
        gained: Images that only the challenger classifies correctly.
        lost: Images that only the opponent classifies correctly.
        rows: All images.
        difference: The assumed difference; 0 gives McNemar's exact test.
    """
    from scipy.special import betainc
    from scipy.stats import beta

    unchanged = rows - gained - lost
    if gained == 0:
        return (
            float(beta.sf(-difference, lost + 1, unchanged))
            if unchanged
            else float(difference >= -1)
        )
    share = np.clip((1 + difference / _differing(gained + lost, unchanged)) / 2, 0, 1)
    return float(np.mean(betainc(gained, lost + 1, share)))


@lru_cache(1024)
def _differing(images: int, unchanged: int) -> NDArray[np.float64]:
    """The quantiles of the weight of the images on which two models differ, and the unseen one.

    Args:
        images: The number of images on which the two models differ.
        unchanged: The number of images on which they do not differ.
    """
    from scipy.stats import beta

    if not unchanged:
        return np.ones(1)
    places = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return np.asarray(beta.ppf(places, images + 1, unchanged))


def lower_limit(gained: int, lost: int, rows: int, level: float) -> float:
    """The lower limit of the difference of two accuracies.

    Args:
        gained: Images that only the challenger classifies correctly.
        lost: Images that only the opponent classifies correctly.
        rows: All images.
        level: The probability that the true difference is below it.
    """
    from scipy.optimize import brentq

    if p_value(gained, lost, rows, -1.0) >= level:  # every image was lost
        return -1.0
    return float(brentq(lambda limit: p_value(gained, lost, rows, limit) - level, -1.0, 1.0))


def _outcome(better: float, not_worse: float, worse: float, level: float) -> str:
    """The outcome, by the probability of such answers if each claim were wrong."""
    if better <= level:
        return "better"
    if not_worse <= level:
        return "not worse"
    return "worse" if worse <= level else "cannot tell"


def holm(probabilities: Mapping[str, float], level: float) -> set[str]:
    """Which of several claims hold, so that one of them is wrong with at most the level.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.

    Args:
        probabilities: The probability of such data if a claim were wrong, by the claim's name.
        level: The probability that any of those that hold is wrong.
    """
    accepted: set[str] = set()
    for name in sorted(probabilities, key=probabilities.__getitem__):
        if probabilities[name] > level / (len(probabilities) - len(accepted)):
            break
        accepted.add(name)
    return accepted
