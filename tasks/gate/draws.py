"""Draws of the difference between two models in a metric, with random weights of the images."""

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
        metric: As `compare` takes it.

    Returns:
        float64 (draws,).
    """
    if metric == "log_loss":
        ours, theirs = (
            losses(answers.likelihood) for answers in (pairs.challenger, pairs.opponent)
        )
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
    images: NDArray[np.int64], of: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Draws a value many times, with random weights of the images.

    Args:
        images: (kinds,), how many images each weight is of.
        of: The values for weights (n, kinds), which add up to 1.
    """
    random = np.random.default_rng(SEED)
    left = max(FEWEST_DRAWS, min(DRAWS, DRAWN_WEIGHTS // len(images)))
    found = []
    while left > 0:
        some = min(left, max(1, WEIGHTS_IN_MEMORY // len(images)))
        weights = random.standard_gamma(images, (some, len(images)))
        found.append(of(weights / weights.sum(axis=1, keepdims=True)))
        left -= some
    return np.concatenate(found)


def _indicators(kinds: NDArray[np.int64], pairs: Pairs) -> "list[csr_array]":
    """Which classes each kind of image counts for, sparse (kinds, classes).

    Args:
        kinds: int64 (3, kinds), the class, the challenger's and the opponent's answer of each.
        pairs: Names the classes.

    Returns:
        Of the class; of the challenger's answer, and the same where it is right; of the opponent's
        answer, and the same where it is right.
    """
    from scipy.sparse import csr_array

    label, ours, theirs = kinds
    right = [np.where(answer == label, label, -1) for answer in (ours, theirs)]

    def indicator(classes: NDArray[np.int64]) -> csr_array:
        kind = np.flatnonzero((classes >= 0) & (classes < pairs.classes))
        shape = (len(classes), pairs.classes)
        return csr_array((np.ones(len(kind)), (kind, classes[kind])), shape)

    return [indicator(classes) for classes in (label, ours, right[0], theirs, right[1])]


def _by_counts(
    counts: Sequence[NDArray[np.float64]], pairs: Pairs, metric: str
) -> NDArray[np.float64]:
    """The difference of a metric of classes, (...,).

    Args:
        counts: (..., classes) each, in the order of `_indicators`.
        pairs: Names the classes.
        metric: A macro average, or a metric of one class.
    """
    actual, ours, ours_right, theirs, theirs_right = counts
    kind, label = split_name(metric)

    def value(of_model: ClassCounts) -> NDArray[np.float64]:
        values: NDArray[np.float64] = getattr(of_model, kind.removeprefix("macro_"))
        return values.mean(axis=-1) if label is None else values[..., pairs.names.index(label)]

    return value(ClassCounts(actual, ours, ours_right)) - value(
        ClassCounts(actual, theirs, theirs_right)
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
    label, answer = np.array([each for each in tried if each[0] != each[1]]).T
    more = _indicators(np.stack([label, answer, label]), pairs)
    seen = [images @ each for each in _indicators(kinds, pairs)]
    counts = [one.toarray() + others for one, others in zip(more, seen, strict=True)]
    worst = int(np.argmin(_by_counts(counts, pairs, metric)))
    return np.array([[label[worst]], [answer[worst]], [label[worst]]])
