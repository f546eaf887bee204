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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Literal

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
    import numpy as np
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

Outcome = Literal["better", "not worse", "worse", "cannot tell"]

# The metrics by which two models can be compared, beside those of one class. The worst class is
# another one in each draw, and the calibration error of few images is biased upwards: for these two
# no limit holds its level.
COMPARABLE = ("accuracy", "macro_precision", "macro_recall", "macro_f1", "log_loss")

POWER = 0.8  # with which the smallest visible difference is seen
SEED = 0
# A probability of 0.05 is then known to 0.002; of a very large split, to 0.007.
DRAWS, FEWEST_DRAWS, DRAWN_WEIGHTS = 10_000, 1_000, 100_000_000
WEIGHTS_IN_MEMORY = 4_000_000
QUANTILES = 2000  # of the share of differing images; by them the probability is averaged


@dataclass(frozen=True)
class Pairs:
    """The answers of two models for the same images, in the same order.

    Attributes:
        names: The classes: those of the images, then those that a model may answer besides.
        classes: How many of them the images have.
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

    @property
    def swapped(self) -> "Pairs":
        """The same, with the challenger as the opponent."""
        return Pairs(self.names, self.classes, self.opponent, self.challenger)

    def take(self, rows: "NDArray[np.int64]") -> "Pairs":
        """The answers for some images, by their indices."""
        return Pairs(self.names, self.classes, self.challenger.take(rows), self.opponent.take(rows))

    def of_class(self, label: str) -> "Pairs":
        """The answers for the images of one class; none if no image has it."""
        import numpy as np

        known = self.names[: self.classes]
        index = known.index(label) if label in known else -1
        return self.take(np.flatnonzero(self.challenger.labels == index))


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

    p_worse = probability(upper >= 0)
    return Difference(
        _difference(pairs, metric),
        float(np.quantile(lower, level)),
        float(np.quantile(upper, 1 - level)),
        _outcome(probability(lower <= 0), probability(lower <= -margin), p_worse, level),
        _reach(level) * float(np.std(lower)),
        p_worse,
    )


def score(predictions: Predictions, pairs: Pairs, metric: str) -> float:
    """A metric of one of the two models."""
    tally = Tally(pairs.names, pairs.classes)
    tally.add(predictions)
    kind, label = split_name(metric)
    if label is None:
        return METRICS[kind].of(tally)
    return float(getattr(tally.of_classes, kind)[pairs.names.index(label)])


def only_one_correct(pairs: Pairs) -> tuple[int, int]:
    """The images that only the challenger classifies correctly, and those that only the other."""
    ours, theirs = (each.labels == each.predicted for each in (pairs.challenger, pairs.opponent))
    return int((ours & ~theirs).sum()), int((theirs & ~ours).sum())


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


def _compare_accuracy(pairs: Pairs, margin: float, level: float) -> Difference:
    gained, lost = only_one_correct(pairs)
    rows = pairs.rows
    # Connor (1987), equation 1, solved for the difference, with the share of images on which the
    # two models differ as it is here.
    share = max(gained + lost, 1) / rows
    visible = min(share, _reach(level) * sqrt(share / rows))
    p_worse = p_value(lost, gained, rows, 0.0)
    return Difference(
        (gained - lost) / rows,
        _limit(gained, lost, rows, level),
        -_limit(lost, gained, rows, level),
        compare_accuracies(gained, lost, rows, margin, level),
        visible,
        p_worse,
    )


def compare_accuracies(gained: int, lost: int, rows: int, margin: float, level: float) -> Outcome:
    """What the answers of two models say of their accuracies.

    Args:
        gained: Images that only the challenger classifies correctly.
        lost: Images that only the opponent classifies correctly.
        rows: All images.
        margin: A challenger that is worse by less is not worse.
        level: The probability of an error on each side.
    """
    return _outcome(
        p_value(gained, lost, rows, 0.0),
        p_value(gained, lost, rows, -margin),
        p_value(lost, gained, rows, 0.0),
        level,
    )


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
    import numpy as np
    from scipy.special import betainc
    from scipy.stats import beta

    same = rows - gained - lost
    if gained == 0:
        return float(beta.sf(-difference, lost + 1, same)) if same else float(difference >= -1)
    share = np.clip((1 + difference / _differing(gained + lost, same)) / 2, 0, 1)
    return float(np.mean(betainc(gained, lost + 1, share)))


@lru_cache(1024)
def _differing(images: int, same: int) -> "NDArray[np.float64]":
    """The quantiles of the weight of the images on which two models differ, and the unseen one.

    Args:
        images: On which the two models differ.
        same: On which they do not.
    """
    import numpy as np
    from scipy.stats import beta

    if not same:
        return np.ones(1)
    places = (np.arange(QUANTILES) + 0.5) / QUANTILES
    quantiles: NDArray[np.float64] = beta.ppf(places, images + 1, same)
    return quantiles


def _limit(gained: int, lost: int, rows: int, level: float) -> float:
    """The lower limit of the difference of two accuracies."""
    from scipy.optimize import brentq

    if p_value(gained, lost, rows, -1.0) >= level:  # every image was lost
        return -1.0
    return float(brentq(lambda each: p_value(gained, lost, rows, each) - level, -1.0, 1.0))


def _outcome(better: float, not_worse: float, worse: float, level: float) -> Outcome:
    """What the probabilities of such answers say, each being that if the claim were wrong."""
    if better <= level:
        return "better"
    if not_worse <= level:
        return "not worse"
    return "worse" if worse <= level else "cannot tell"


def draws(pairs: Pairs, metric: str) -> "NDArray[np.float64]":
    """Differences of a metric, with the images and one unseen image weighed at random.

    The unseen image is the worst for the challenger. The draws are the same each time.

    Args:
        pairs: The answers.
        metric: As `compare` takes it.

    Returns:
        float64 (draws,).
    """
    import numpy as np

    if metric == "log_loss":
        ours, theirs = (losses(each.likelihood) for each in (pairs.challenger, pairs.opponent))
        unseen = losses(np.ones(1, np.float32)) - losses(np.zeros(1, np.float32))
        values = np.append(theirs - ours, unseen)
        return _weighed(np.ones(len(values), np.int64), lambda weights: weights @ values)
    # Images with the same class and the same two answers are weighed together.
    answers = (pairs.challenger.labels, pairs.challenger.predicted, pairs.opponent.predicted)
    kinds, images = np.unique(np.stack(answers), axis=1, return_counts=True)
    worst = _worst_image(kinds, images, pairs, metric)
    indicators = _indicators(np.append(kinds, worst, axis=1), pairs)
    return _weighed(
        np.append(images, 1),
        lambda weights: _by_counts([weights @ each for each in indicators], pairs, metric),
    )


def _weighed(
    images: "NDArray[np.int64]", of: "Callable[[NDArray[np.float64]], NDArray[np.float64]]"
) -> "NDArray[np.float64]":
    """Draws a value many times, with random weights of the images.

    Args:
        images: (kinds,), how many images each weight is of.
        of: The values for weights (n, kinds), which add up to 1.
    """
    import numpy as np

    random = np.random.default_rng(SEED)
    left = max(FEWEST_DRAWS, min(DRAWS, DRAWN_WEIGHTS // len(images)))
    found = []
    while left > 0:
        some = min(left, max(1, WEIGHTS_IN_MEMORY // len(images)))
        weights = random.standard_gamma(images, (some, len(images)))
        found.append(of(weights / weights.sum(axis=1, keepdims=True)))
        left -= some
    return np.concatenate(found)


def _indicators(kinds: "NDArray[np.int64]", pairs: Pairs) -> "list[csr_array]":
    """Which classes each kind of image counts for, sparse (kinds, classes).

    Args:
        kinds: int64 (3, kinds), the class, the challenger's and the opponent's answer of each.
        pairs: Names the classes.

    Returns:
        Of the class; of the challenger's answer, and the same where it is right; of the opponent's
        answer, and the same where it is right.
    """
    import numpy as np
    from scipy.sparse import csr_array

    label, ours, theirs = kinds
    right = [np.where(answer == label, label, -1) for answer in (ours, theirs)]

    def indicator(classes: "NDArray[np.int64]") -> csr_array:
        kind = np.flatnonzero((classes >= 0) & (classes < pairs.classes))
        shape = (len(classes), pairs.classes)
        return csr_array((np.ones(len(kind)), (kind, classes[kind])), shape)

    return [indicator(classes) for classes in (label, ours, right[0], theirs, right[1])]


def _by_counts(
    counts: "Sequence[NDArray[np.float64]]", pairs: Pairs, metric: str
) -> "NDArray[np.float64]":
    """The difference of a metric of classes, (...,).

    Args:
        counts: (..., classes) each, in the order of `_indicators`.
        pairs: Names the classes.
        metric: A macro average, or a metric of one class.
    """
    actual, ours, ours_right, theirs, theirs_right = counts
    kind, label = split_name(metric)

    def value(of_model: ClassCounts) -> "NDArray[np.float64]":
        values: NDArray[np.float64] = getattr(of_model, kind.removeprefix("macro_"))
        return values.mean(axis=-1) if label is None else values[..., pairs.names.index(label)]

    return value(ClassCounts(actual, ours, ours_right)) - value(
        ClassCounts(actual, theirs, theirs_right)
    )


def _worst_image(
    kinds: "NDArray[np.int64]", images: "NDArray[np.int64]", pairs: Pairs, metric: str
) -> "NDArray[np.int64]":
    """The image that lowers the difference most: its class, and both answers, int64 (3, 1).

    The opponent has it right. The challenger answers the class that it answers least often, where
    a wrong answer weighs most, or the class that the metric is of.

    Args:
        kinds: int64 (3, kinds), as `_indicators` takes them.
        images: int64 (kinds,), how many images there are of each.
        pairs: Names the classes.
        metric: A macro average, or a metric of one class.
    """
    import numpy as np

    answered = np.bincount(kinds[1], images, len(pairs.names))[: max(2, pairs.classes)]
    wrong = np.argsort(answered, kind="stable")[:2].tolist()
    if (named := split_name(metric)[1]) is not None:
        wrong.append(pairs.names.index(named))
    tried = [(label, answer) for label in range(pairs.classes) for answer in wrong]
    label, answer = np.array([each for each in tried if each[0] != each[1]]).T
    more = _indicators(np.stack([label, answer, label]), pairs)
    seen = [images @ each for each in _indicators(kinds, pairs)]
    counts = [one.toarray() + others for one, others in zip(more, seen, strict=True)]
    worst = int(np.argmin(_by_counts(counts, pairs, metric)))
    return np.array([[label[worst]], [answer[worst]], [label[worst]]])


def _difference(pairs: Pairs, metric: str) -> float:
    ours, theirs = (score(each, pairs, metric) for each in (pairs.challenger, pairs.opponent))
    return theirs - ours if metric in LOWER_IS_BETTER else ours - theirs


def _reach(level: float) -> float:
    """How many standard errors a difference has to have to be seen with the power."""
    from scipy.stats import norm

    return float(norm.isf(level) + norm.isf(1 - POWER))
