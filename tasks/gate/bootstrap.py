"""Draws differences between two models, with the images that both were asked about weighed anew.

Images are weighed at random, as in the Bayesian bootstrap (Rubin, 1981), together with one that was
not seen and that is the worst for the challenger. `paired.py` says why, and what follows.

Images that belong together (copies, those of one patient) say less than as many others, because
both models tend to err on all of them. So groups are weighed in place of images, with one unseen
group of the mean size, all of which the challenger has wrong. A smaller one has more power, and
lets more than the level of wrong models pass: `python -m benchmarks.gate --groups` shows both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tasks.data.metrics import METRICS, ClassCounts, Predictions, Tally, losses, split_name

if TYPE_CHECKING:
    from scipy.sparse import csr_array

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
