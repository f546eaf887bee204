"""What the answers of two models for the same images say of their difference, and how surely.

One method serves every metric and every claim. The images that were seen are weighed at random, as
in the Bayesian bootstrap (Rubin, 1981), together with one image that was not seen and that is the
worst for the claim: the opponent has it right, and the challenger has it wrong. A claim such as
"the difference is above -margin" holds if the weighed difference contradicts it with no more than
the probability of the level.

For the mean of a bounded quantity this is Gaffke's bound (Gaffke, 2005; Learned-Miller and Thomas,
2019, "A new confidence interval for the mean of a bounded random variable"). For accuracy it gives
the exact test of McNemar (1947) for the claim "better", and the exact limit of Clopper and Pearson
(1934) where no image was gained. The unseen image is what keeps a comparison from being sure when
nothing was seen to differ.

A difference is positive where the challenger is the better one, whatever the metric.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Literal

from tasks.data.metrics import LOWER_IS_BETTER, split_name
from tasks.gate.accuracies import lower_limit, p_value
from tasks.gate.draws import draws
from tasks.gate.pairs import Pairs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Outcome = Literal["better", "not worse", "worse", "cannot tell"]

# The metrics by which two models can be compared, beside those of one class. The worst class is
# another one in each draw, and the calibration error of few images is biased upwards: for these two
# no limit holds its level.
COMPARABLE = ("accuracy", "macro_precision", "macro_recall", "macro_f1", "log_loss")

POWER = 0.8  # with which the smallest visible difference is seen


@dataclass(frozen=True)
class Difference:
    """By how much the challenger is better.

    Attributes:
        difference: As measured.
        low: The lower limit; the true difference is below it with the probability of the level.
        high: The upper limit, in the same way.
        outcome: What they say.
        visible: The smallest difference that is seen with a probability of 80 %.
        p_worse: The probability of such answers if the challenger were no worse, at most.
    """

    difference: float
    low: float
    high: float
    outcome: Outcome
    visible: float
    p_worse: float


def compare(pairs: Pairs, metric: str, margin: float, level: float) -> Difference:
    """Compares two models by one metric.

    Args:
        pairs: Their answers; for a metric of one class, at least one of its images.
        metric: One of `COMPARABLE`, or one of a class, such as `recall[cat]`.
        margin: A challenger that is worse by less is not worse.
        level: The probability of an error on each side.
    """
    kind, label = split_name(metric)
    if kind == "recall" and label is not None:  # the accuracy of the images of the class
        return _compare_accuracy(pairs.of_class(label), margin, level)
    if kind == "accuracy":
        return _compare_accuracy(pairs, margin, level)
    import numpy as np

    lower, upper = draws(pairs, metric), -draws(pairs.swapped, metric)

    def probability(claims: "NDArray[np.bool_]") -> float:
        return float((1 + claims.sum()) / (1 + len(claims)))

    ours, theirs = (pairs.score(each, metric) for each in (pairs.challenger, pairs.opponent))
    p_worse = probability(upper >= 0)
    return Difference(
        theirs - ours if metric in LOWER_IS_BETTER else ours - theirs,
        float(np.quantile(lower, level)),
        float(np.quantile(upper, 1 - level)),
        _outcome(probability(lower <= 0), probability(lower <= -margin), p_worse, level),
        _reach(level) * float(np.std(lower)),
        p_worse,
    )


def _compare_accuracy(pairs: Pairs, margin: float, level: float) -> Difference:
    (gained, lost), rows = pairs.only_one_correct, pairs.rows
    # Connor (1987), equation 1, solved for the difference, with the share of images on which the
    # two models differ as it is here.
    share = max(gained + lost, 1) / rows
    better, not_worse = (p_value(gained, lost, rows, limit) for limit in (0.0, -margin))
    p_worse = p_value(lost, gained, rows, 0.0)
    return Difference(
        (gained - lost) / rows,
        lower_limit(gained, lost, rows, level),
        -lower_limit(lost, gained, rows, level),
        _outcome(better, not_worse, p_worse, level),
        min(share, _reach(level) * sqrt(share / rows)),
        p_worse,
    )


def _outcome(better: float, not_worse: float, worse: float, level: float) -> Outcome:
    """What the probabilities of such answers say, each being that if the claim were wrong."""
    if better <= level:
        return "better"
    if not_worse <= level:
        return "not worse"
    return "worse" if worse <= level else "cannot tell"


def _reach(level: float) -> float:
    """How many standard errors a difference has to have to be seen with the power."""
    from scipy.stats import norm

    return float(norm.isf(level) + norm.isf(1 - POWER))


def holm(probabilities: Mapping[str, float], level: float) -> set[str]:
    """Which of several claims hold, so that one of them is wrong with at most the level.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.

    Args:
        probabilities: Of each claim, by its name, that of such data if it were wrong.
        level: The probability that any of those that hold is wrong.
    """
    held: set[str] = set()
    for name in sorted(probabilities, key=probabilities.__getitem__):
        if probabilities[name] > level / (len(probabilities) - len(held)):
            break
        held.add(name)
    return held


def images_needed(rows: int, visible: float, margin: float) -> int:
    """How many test images would show a difference of the size of the margin.

    What can be seen shrinks with the root of the number of images.

    Args:
        rows: The images that were compared.
        visible: The smallest difference that these show.
        margin: The difference that should be seen.
    """
    return round(rows * (visible / margin) ** 2)
