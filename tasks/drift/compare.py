"""How far what comes in is from a reference, and how far chance alone may put it.

Each feature has a distance from 0 to 1: of labels the total variation distance of their shares, of
numbers the Kolmogorov-Smirnov statistic, of embeddings the energy coefficient (`energy`).

What chance does comes from the two samples themselves (a permutation test): the images of both are
divided at random into two samples of the same sizes, again and again. Where nothing has changed,
each division is as likely as the real one, whatever the feature is like: constant but for a few
images, or of a thousand labels. The median of their distances is what is usual. The yardstick is
the distance that so few of them exceed that in at most 5 of 100 checks any of the features exceeds
its own (Bonferroni); and it is further than what is usual by what one image can do at least. The
score is how much further than usual the two samples are, where the yardstick has a score of 1.
`python -m benchmarks.drift` counts false alarms, and what is found.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retrain.step import Facts
from tasks.data.image_facts import FACTS

DIVISIONS = 1000
LEVEL = 0.05  # the probability that any feature exceeds its yardstick though nothing has changed
NUMBERS = ("confidence", *FACTS)


# Of a feature: its name (`label`, `confidence`, one of `FACTS`, or `embedding`: what the last layer
# of the model takes); its mean in the reference and in what comes in, None for labels and
# embeddings; the distance, from 0 to 1; the distance where nothing has changed, in the median; the
# one that is seldom exceeded then; and the score: 0 is as usual or closer, 1 is the yardstick. The
# last four are None for embeddings that a sample does not have.
COLUMNS = ("feature", "reference", "incoming", "distance", "usual", "yardstick", "score")


def compare(reference: pa.Table, incoming: pa.Table, seed: int = 0) -> list[Facts]:
    """Compares two samples with the columns of `tasks.data.image_facts.schema`.

    Args:
        reference: At least one image.
        incoming: At least one image.
        seed: Of the divisions that are drawn.

    Returns:
        The `COLUMNS` of each feature: labels first, the embedding last.
    """
    tables = (reference, incoming)
    embeddings = [table["features"].drop_null().to_numpy() for table in tables]
    has_embeddings = all(map(len, embeddings))
    level = LEVEL / (1 + len(NUMBERS) + has_embeddings)
    sizes = [*map(len, tables)]
    is_incoming = _divisions(sizes, seed)
    labels = np.concatenate([table["label"].to_numpy() for table in tables])
    differences, whole = _differences(labels, is_incoming)
    total_variation = abs(differences).sum(axis=1) / (2 * whole)
    found = [_feature("label", total_variation, level, min(sizes))]
    for name in NUMBERS:
        values = [table[name].to_numpy().astype(np.float64) for table in tables]
        differences, whole = _differences(np.concatenate(values), is_incoming)
        distances = abs(differences.cumsum(axis=1)).max(axis=1) / whole  # Kolmogorov-Smirnov
        means = [float(each.mean()) for each in values]
        found.append(_feature(name, distances, level, min(sizes), *means))
    if not has_embeddings:
        return [*found, {**dict.fromkeys(COLUMNS), "feature": "embedding"}]
    sizes = [*map(len, embeddings)]
    distances = energy(np.stack([*np.concatenate(embeddings)]), _divisions(sizes, seed))
    return [*found, _feature("embedding", distances, level, min(sizes))]


def shares(reference: pa.Table, incoming: pa.Table) -> list[dict[str, str | float]]:
    """The share of each label in both samples."""
    then, now = (Counter(table["label"].to_pylist()) for table in (reference, incoming))
    return [
        {
            "label": name,
            "reference": then[name] / len(reference),
            "incoming": now[name] / len(incoming),
        }
        for name in sorted({*then, *now})
    ]


def _divisions(sizes: Sequence[int], seed: int) -> NDArray[np.bool_]:
    """Which images belong to what comes in: as it is, and in divisions at random.

    Args:
        sizes: How many images the reference has, and what comes in.
        seed: Of the divisions.

    Returns:
        Bool (1 + DIVISIONS, images).
    """
    is_incoming = np.tile(np.arange(sum(sizes)) >= sizes[0], (1 + DIVISIONS, 1))
    is_incoming[1:] = np.random.default_rng(seed).permuted(is_incoming[1:], axis=1)
    return is_incoming


def _feature(
    name: str,
    distances: NDArray[np.float64],
    level: float,
    smaller: int,
    reference: float | None = None,
    incoming: float | None = None,
) -> Facts:
    """A feature from its distances, the real one first, of which the share `level` may be larger.

    Args:
        name: Its name.
        distances: (1 + DIVISIONS,).
        level: The share.
        smaller: How many images the smaller sample has.
        reference: Its mean there.
        incoming: Its mean in what comes in.
    """
    found, usual = float(distances[0]), float(np.median(distances))
    seldom = float(np.quantile(distances, 1 - level, method="inverted_cdf"))
    reach = max(seldom - usual, 1 / smaller)
    score = max(0.0, found - usual) / reach
    values = (name, reference, incoming, found, usual, usual + reach, score)
    return dict(zip(COLUMNS, values, strict=True))


def _differences(
    values: NDArray[Any], is_incoming: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], int]:
    """How much more often each value comes in than it is in the reference, for each division.

    Returns:
        The differences of the two shares (divisions, values), in order of the values; and the
        number that stands for 1 in them. They are whole numbers, so that ties stay ties.
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.append(True, values[order][1:] != values[order][:-1]))
    images, incoming = is_incoming.shape[1], int(is_incoming[0].sum())
    steps = np.where(is_incoming[:, order], images - incoming, -incoming)
    return np.add.reduceat(steps, starts, axis=1), (images - incoming) * incoming


def energy(features: NDArray[np.float32], is_incoming: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The distance of two samples of features, for each division of the same images into two.

    It is the energy coefficient of Székely and Rizzo ("Energy statistics: A class of statistics
    based on distances", Journal of Statistical Planning and Inference 143, 2013), as a root:

        sqrt((2 E|X - Y| - E|X - X'| - E|Y - Y'|) / (2 E|X - Y|))

    X and X' are drawn from the one sample, Y and Y' from the other, and |.| is the Euclidean norm.
    It is 0 only for two equal distributions, 1 at most, and knows no parameter and no unit.

    Args:
        features: (N, D), of the images of both samples.
        is_incoming: (divisions, N), which images belong to the second one.

    Returns:
        (divisions,), from 0 to 1.
    """
    rows = features.astype(np.float64)
    squares = np.einsum("ij,ij->i", rows, rows)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0))
    other = is_incoming.astype(np.float64)
    one, sizes = 1 - other, other.sum(axis=1)
    # The summed distances of each image to those of a sample; both make up those to all.
    to_other = other @ apart
    to_one = apart.sum(axis=0) - to_other
    second = np.einsum("ij,ij->i", to_other, other) / sizes**2
    between = np.einsum("ij,ij->i", to_one, other) / (sizes * (len(features) - sizes))
    first = np.einsum("ij,ij->i", to_one, one) / (len(features) - sizes) ** 2
    found = np.maximum(2 * between - first - second, 0)  # rounding may make it negative
    shares = np.divide(found, 2 * between, out=np.zeros_like(found), where=between > 0)
    return np.asarray(np.sqrt(shares))
