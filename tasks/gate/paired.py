"""Compares the answers of two models for the same images, and says how sure the difference is.

One method serves every metric and every claim. The images that were seen are weighed at random, as
in the Bayesian bootstrap (Rubin, 1981), together with one image that was not seen and that is the
worst for the claim: the opponent has it right, and the challenger has it wrong. A claim such as
"the difference is above -margin" holds if the weighed difference contradicts it with no more than
the probability of the level.

Images that belong together (copies, those of one patient) say less than as many others, because
both models tend to err on all of them. So groups are weighed in place of images, with one unseen
group of the mean size, all of which the challenger has wrong. A smaller one has more power, and
lets more than the level of wrong models pass: `python -m benchmarks.gate --groups` shows both.

For the mean of a bounded quantity this is Gaffke's bound (Gaffke, 2005; Learned-Miller and Thomas,
2019, "A new confidence interval for the mean of a bounded random variable"). For accuracy it gives
the exact test of McNemar (1947) for the claim "better", and the exact limit of Clopper and Pearson
(1934) where no image was gained. The unseen image is what keeps a comparison from being sure when
nothing was seen to differ.

A difference is positive where the challenger is the better one, whatever the metric.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from retrain.step import Facts
from tasks.data.metrics import (
    LOWER_IS_BETTER,
    METRICS,
    ClassCounts,
    Predictions,
    Tally,
    losses,
    split_name,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# The metrics by which two models can be compared, beside those of one class. The worst class is
# another one in each draw, and the calibration error of few images is biased upwards: for these two
# no limit holds its level.
COMPARABLE = ("accuracy", "macro_precision", "macro_recall", "macro_f1", "log_loss")

POWER = 0.8  # with which the smallest visible difference is seen
QUANTILES = 2000  # of the share of differing images; by them the probability is averaged
SEED = 0
# A probability of 0.05 is then known to 0.002; of a very large split, to 0.007.
DRAWS, FEWEST_DRAWS, DRAWN_WEIGHTS = 10_000, 1_000, 100_000_000
WEIGHTS_IN_MEMORY = 4_000_000


@dataclass(frozen=True)
class Pairs:
    """The answers of two models for the same images, in the same order.

    Attributes:
        names: The classes: those of the images, then those that a model may answer besides.
        classes: The number of classes that the images have.
        challenger: The answers of the model that may be promoted.
        opponent: The answers of the model that it is compared with.
        groups: int64 (images,), a number for each image that is the same for those that belong
            together.
    """

    names: tuple[str, ...]
    classes: int
    challenger: Predictions
    opponent: Predictions
    groups: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """The number of images."""
        return len(self.challenger.labels)

    @property
    def group_sizes(self) -> NDArray[np.int64]:
        """The number of images of each group, int64 (groups,)."""
        return np.unique(self.groups, return_counts=True)[1]

    @property
    def swapped(self) -> "Pairs":
        """The pairs with the two models exchanged."""
        return Pairs(self.names, self.classes, self.opponent, self.challenger, self.groups)

    def take(self, rows: NDArray[np.int64]) -> "Pairs":
        """The answers for some images, by their indices."""
        return Pairs(
            self.names,
            self.classes,
            self.challenger.take(rows),
            self.opponent.take(rows),
            self.groups[rows],
        )

    def of_class(self, label: str) -> "Pairs":
        """The answers for the images of one class; none if no image has it."""
        classes = self.names[: self.classes]
        index = classes.index(label) if label in classes else -1
        return self.take(np.flatnonzero(self.challenger.labels == index))

    @property
    def only_one_correct(self) -> tuple[int, int]:
        """How many images only the challenger, and how many only the opponent, has right."""
        challenger, opponent = (
            answers.labels == answers.predicted for answers in (self.challenger, self.opponent)
        )
        return int((challenger & ~opponent).sum()), int((opponent & ~challenger).sum())

    def score(self, answers: Predictions, metric: str) -> float:
        """A metric of one of the two models, also one of a class."""
        kind, label = split_name(metric)
        tally = Tally(self.names, self.classes, answers)
        if label is None:
            return METRICS[kind](tally)
        return float(getattr(tally.of_classes, kind)[self.names.index(label)])


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
        `outcome`, what they say: `better`, `not worse`, `worse` or `cannot tell`; `visible`, the
        smallest difference that is seen with a probability of 80 %; and `p_worse`, the probability
        of such answers if the challenger were no worse, at most.
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
        "visible": _reach(level) * float(np.std(lower)),
        "p_worse": p_worse,
    }


def _compare_accuracy(pairs: Pairs, margin: float, level: float) -> Facts:
    (gained, lost), rows = pairs.only_one_correct, pairs.rows
    # Connor (1987), equation 1, solved for the difference, with the share of images on which the
    # two models differ as it is here.
    share = max(gained + lost, 1) / rows
    better, not_worse = (p_value(gained, lost, rows, limit) for limit in (0.0, -margin))
    p_worse = p_value(lost, gained, rows, 0.0)
    return {
        "difference": (gained - lost) / rows,
        "low": lower_limit(gained, lost, rows, level),
        "high": -lower_limit(lost, gained, rows, level),
        "outcome": _outcome(better, not_worse, p_worse, level),
        "visible": min(share, _reach(level) * sqrt(share / rows)),
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


def fewest_images(margin: float, level: float) -> int:
    """With how many test images a difference of accuracies of the margin can be seen at best.

    That is Connor (1987), equation 1, for a model that gets images right and none wrong, so that
    the two models differ on a share of the images that is the margin.
    """
    return ceil(_reach(level) ** 2 / margin)


def _reach(level: float) -> float:
    """The number of standard errors of the smallest difference that is seen with `POWER`."""
    from scipy.stats import norm

    return float(norm.isf(level) + norm.isf(1 - POWER))


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


def draws(pairs: Pairs, metric: str) -> NDArray[np.float64]:
    """Differences of a metric, with the groups of images and one unseen group weighed at random.

    The unseen group is the worst for the challenger. The draws are the same each time.

    Args:
        pairs: The answers.
        metric: A metric, as `compare` takes it.

    Returns:
        float64 (draws,).
    """
    _, group_of, sizes = np.unique(pairs.groups, return_inverse=True, return_counts=True)
    unseen = sizes.mean()
    if metric in ("accuracy", "log_loss"):
        values, worst_value = _values(pairs, metric)
        totals = np.append(np.bincount(group_of, values), unseen * worst_value)
        images_of = np.append(sizes, unseen)
        return _weighed(
            np.ones(len(totals), np.int64), lambda weights: weights @ totals / (weights @ images_of)
        )
    # Images with the same class and the same two answers are of one kind.
    answers = (pairs.challenger.labels, pairs.challenger.predicted, pairs.opponent.predicted)
    kinds, kind_of, images = np.unique(
        np.stack(answers), axis=1, return_inverse=True, return_counts=True
    )
    worst = _worst_image(kinds, images, unseen, pairs, metric)
    indicators = _indicators(np.append(kinds, worst, axis=1), pairs)
    if len(sizes) == pairs.rows:  # those of a kind are weighed together
        weighed = np.append(images, 1)
    else:
        weighed = np.ones(len(sizes) + 1, np.int64)
        in_groups = _images_of_kinds(group_of, kind_of, unseen)
        indicators = [in_groups @ indicator for indicator in indicators]
    return _weighed(
        weighed,
        lambda weights: _by_counts(
            [weights @ indicator for indicator in indicators], pairs, metric
        ),
    )


def _values(pairs: Pairs, metric: str) -> tuple[NDArray[np.float64], float]:
    """By how much the challenger is better on each image, float64 (images,), and the worst value.

    Args:
        pairs: The answers.
        metric: `accuracy` or `log_loss`, the means of these values.
    """
    both = (pairs.challenger, pairs.opponent)
    if metric == "accuracy":
        challenger, opponent = ((each.labels == each.predicted).astype(float) for each in both)
        return challenger - opponent, -1.0
    challenger, opponent = (losses(each.likelihood) for each in both)
    [best], [worst] = losses(np.ones(1, np.float32)), losses(np.zeros(1, np.float32))
    return opponent - challenger, float(best - worst)


def _images_of_kinds(
    group_of: NDArray[np.int64], kind_of: NDArray[np.int64], unseen: float
) -> "csr_array":
    """How many images of each kind each group has, sparse (groups + 1, kinds + 1).

    Args:
        group_of: int64 (images,), the index of the group of each image.
        kind_of: int64 (images,), the index of its kind.
        unseen: How many images the unseen group has, all of the last kind.
    """
    from scipy.sparse import csr_array

    rows = np.append(group_of, group_of.max() + 1)
    columns = np.append(kind_of, kind_of.max() + 1)
    return csr_array((np.append(np.ones(len(group_of)), unseen), (rows, columns)))


def _weighed(
    images: NDArray[np.int64], values_of: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Draws a value many times, with random weights of the images.

    Args:
        images: (kinds,), how many images, or groups, each weight is of.
        values_of: Calculates the values for weights (n, kinds), each row of which adds up to 1.
    """
    random = np.random.default_rng(SEED)
    remaining = max(FEWEST_DRAWS, min(DRAWS, DRAWN_WEIGHTS // len(images)))
    drawn = []
    while remaining > 0:
        count = min(remaining, max(1, WEIGHTS_IN_MEMORY // len(images)))
        weights = random.standard_gamma(images, (count, len(images)))
        drawn.append(values_of(weights / weights.sum(axis=1, keepdims=True)))
        remaining -= count
    return np.concatenate(drawn)


def _indicators(kinds: NDArray[np.int64], pairs: Pairs) -> "list[csr_array]":
    """Which classes each kind of image counts for, sparse (kinds, classes).

    Args:
        kinds: int64 (3, kinds), the class, the challenger's and the opponent's answer of each.
        pairs: Names the classes.

    Returns:
        Five arrays: of the class; of the challenger's answer; of its answer where it is right; of
        the opponent's answer; and of its answer where it is right.
    """
    from scipy.sparse import csr_array

    label, challenger, opponent = kinds
    right = [np.where(answer == label, label, -1) for answer in (challenger, opponent)]

    def indicator(classes: NDArray[np.int64]) -> csr_array:
        kind = np.flatnonzero((classes >= 0) & (classes < pairs.classes))
        shape = (len(classes), pairs.classes)
        return csr_array((np.ones(len(kind)), (kind, classes[kind])), shape)

    return [indicator(classes) for classes in (label, challenger, right[0], opponent, right[1])]


def _by_counts(
    counts: Sequence[NDArray[np.float64]], pairs: Pairs, metric: str
) -> NDArray[np.float64]:
    """The difference of a metric of classes, (...,).

    Args:
        counts: (..., classes) each, in the order of `_indicators`.
        pairs: Names the classes.
        metric: A macro average, or a metric of one class.
    """
    actual, challenger, challenger_right, opponent, opponent_right = counts
    kind, label = split_name(metric)

    def value(of_model: ClassCounts) -> NDArray[np.float64]:
        values: NDArray[np.float64] = getattr(of_model, kind.removeprefix("macro_"))
        return values.mean(axis=-1) if label is None else values[..., pairs.names.index(label)]

    return value(ClassCounts(actual, challenger, challenger_right)) - value(
        ClassCounts(actual, opponent, opponent_right)
    )


def _worst_image(
    kinds: NDArray[np.int64],
    images: NDArray[np.int64],
    unseen: float,
    pairs: Pairs,
    metric: str,
) -> NDArray[np.int64]:
    """The image that lowers the difference most: its class, and both answers, int64 (3, 1).

    The opponent has it right. The challenger answers the class that it answers least often, where
    a wrong answer weighs most, or the class that the metric is of.

    Args:
        kinds: int64 (3, kinds), as `_indicators` takes them.
        images: int64 (kinds,), how many images there are of each.
        unseen: How many of the worst one are not seen.
        pairs: Names the classes.
        metric: A macro average, or a metric of one class.
    """
    answered = np.bincount(kinds[1], images, len(pairs.names))[: max(2, pairs.classes)]
    wrong = np.argsort(answered, kind="stable")[:2].tolist()
    if (named := split_name(metric)[1]) is not None:
        wrong.append(pairs.names.index(named))
    tried = [(label, answer) for label in range(pairs.classes) for answer in wrong]
    label, answer = np.array([pair for pair in tried if pair[0] != pair[1]]).T
    extra_counts = _indicators(np.stack([label, answer, label]), pairs)
    seen_counts = [images @ indicator for indicator in _indicators(kinds, pairs)]
    counts = [
        unseen * extra.toarray() + seen
        for extra, seen in zip(extra_counts, seen_counts, strict=True)
    ]
    worst = int(np.argmin(_by_counts(counts, pairs, metric)))
    return np.array([[label[worst]], [answer[worst]], [label[worst]]])
