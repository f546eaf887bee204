"""Draws the difference of two models in a metric many times, with random weights of the images."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tasks.data.metrics import ClassCounts, losses, split_name
from tasks.gate.pairs import Pairs

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SEED = 0
# A probability of 0.05 is then known to 0.002; of a very large split, to 0.007.
DRAWS, FEWEST_DRAWS, DRAWN_WEIGHTS = 10_000, 1_000, 100_000_000
WEIGHTS_IN_MEMORY = 4_000_000


def draws(pairs: Pairs, metric: str) -> NDArray[np.float64]:
    """Differences of a metric, with the images and one unseen image weighed at random.

    The unseen image is the worst for the challenger. The draws are the same each time.

    Args:
        pairs: The answers.
        metric: A metric, as `tasks.gate.paired.compare` takes it.

    Returns:
        float64 (draws,).
    """
    if metric == "log_loss":
        challenger, opponent = (
            losses(answers.likelihood) for answers in (pairs.challenger, pairs.opponent)
        )
        unseen = losses(np.ones(1, np.float32)) - losses(np.zeros(1, np.float32))
        values = np.append(opponent - challenger, unseen)
        return _weighed(np.ones(len(values), np.int64), lambda weights: weights @ values)
    # Images with the same class and the same two answers are weighed together.
    answers = (pairs.challenger.labels, pairs.challenger.predicted, pairs.opponent.predicted)
    kinds, images = np.unique(np.stack(answers), axis=1, return_counts=True)
    worst = _worst_image(kinds, images, pairs, metric)
    indicators = _indicators(np.append(kinds, worst, axis=1), pairs)
    return _weighed(
        np.append(images, 1),
        lambda weights: _by_counts(
            [weights @ indicator for indicator in indicators], pairs, metric
        ),
    )


def _weighed(
    images: NDArray[np.int64], values_of: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Draws a value many times, with random weights of the images.

    Args:
        images: (kinds,), how many images each weight is of.
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
    kinds: NDArray[np.int64], images: NDArray[np.int64], pairs: Pairs, metric: str
) -> NDArray[np.int64]:
    """The image that lowers the difference most: its class, and both answers, int64 (3, 1).

    The opponent has it right. The challenger answers the class that it answers least often, where
    a wrong answer weighs most, or the class that the metric is of.

    Args:
        kinds: int64 (3, kinds), as `_indicators` takes them.
        images: int64 (kinds,), how many images there are of each.
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
    counts = [extra.toarray() + seen for extra, seen in zip(extra_counts, seen_counts, strict=True)]
    worst = int(np.argmin(_by_counts(counts, pairs, metric)))
    return np.array([[label[worst]], [answer[worst]], [label[worst]]])
