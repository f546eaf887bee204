"""How far what comes in is from a reference, and how far chance alone may put it.

Each feature has a distance from 0 to 1: of labels the total variation distance of their shares, of
numbers the Kolmogorov-Smirnov statistic, of embeddings that of `tasks.drift.embedding`.

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.data.image_facts import FACTS
from tasks.drift.embedding import energy

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

DIVISIONS = 1000
LEVEL = 0.05  # the probability that any feature exceeds its yardstick though nothing has changed
NUMBERS = ("confidence", *FACTS)


@dataclass(frozen=True)
class Feature:
    """How far one feature is.

    Attributes:
        feature: Its name: `label`, `confidence`, one of `FACTS`, or `embedding`: what the last
            layer of the model takes.
        reference: Its mean there; None for labels and embeddings.
        incoming: Its mean in what comes in; None as above.
        distance: From 0 to 1; None if it is not compared, because a sample has no embeddings.
        usual: The distance where nothing has changed, in the median; None as above.
        yardstick: The distance that is seldom exceeded then; None as above.
        score: From 0, which is as usual, or closer; 1 is the yardstick. None as above.
    """

    feature: str
    reference: float | None
    incoming: float | None
    distance: float | None
    usual: float | None
    yardstick: float | None
    score: float | None


def compare(reference: "pa.Table", incoming: "pa.Table", seed: int = 0) -> list[Feature]:
    """Compares two samples with the columns of `tasks.data.image_facts.schema`.

    Args:
        reference: At least one image.
        incoming: At least one image.
        seed: Of the divisions that are drawn.

    Returns:
        The features: labels first, the embedding last.
    """
    import numpy as np

    tables = (reference, incoming)
    embeddings = [table["features"].drop_null().to_numpy() for table in tables]
    has_embeddings = all(map(len, embeddings))
    level = LEVEL / (1 + len(NUMBERS) + has_embeddings)
    sizes = [*map(len, tables)]
    is_incoming = _divisions(sizes, seed)
    labels = np.concatenate([table["label"].to_numpy() for table in tables])
    found = [_feature("label", _total_variation(labels, is_incoming), level, min(sizes))]
    for name in NUMBERS:
        values = [table[name].to_numpy().astype(np.float64) for table in tables]
        distances = _kolmogorov_smirnov(np.concatenate(values), is_incoming)
        means = [float(each.mean()) for each in values]
        found.append(_feature(name, distances, level, min(sizes), *means))
    if not has_embeddings:
        return [*found, Feature("embedding", *[None] * 6)]
    sizes = [*map(len, embeddings)]
    distances = energy(np.stack([*np.concatenate(embeddings)]), _divisions(sizes, seed))
    return [*found, _feature("embedding", distances, level, min(sizes))]


def shares(reference: "pa.Table", incoming: "pa.Table") -> list[dict[str, str | float]]:
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


def _divisions(sizes: Sequence[int], seed: int) -> "NDArray[np.bool_]":
    """Which images belong to what comes in: as it is, and in divisions at random.

    Args:
        sizes: How many images the reference has, and what comes in.
        seed: Of the divisions.

    Returns:
        Bool (1 + DIVISIONS, images).
    """
    import numpy as np

    is_incoming = np.tile(np.arange(sum(sizes)) >= sizes[0], (1 + DIVISIONS, 1))
    is_incoming[1:] = np.random.default_rng(seed).permuted(is_incoming[1:], axis=1)
    return is_incoming


def _feature(
    name: str,
    distances: "NDArray[np.float64]",
    level: float,
    smaller: int,
    reference: float | None = None,
    incoming: float | None = None,
) -> Feature:
    """A feature from its distances, the real one first, of which the share `level` may be larger.

    Args:
        name: Its name.
        distances: (1 + DIVISIONS,).
        level: The share.
        smaller: How many images the smaller sample has.
        reference: Its mean there.
        incoming: Its mean in what comes in.
    """
    import numpy as np

    found, usual = float(distances[0]), float(np.median(distances))
    seldom = float(np.quantile(distances, 1 - level, method="inverted_cdf"))
    reach = max(seldom - usual, 1 / smaller)
    score = max(0.0, found - usual) / reach
    return Feature(name, reference, incoming, found, usual, usual + reach, score)


def _differences(
    values: "NDArray[Any]", is_incoming: "NDArray[np.bool_]"
) -> "tuple[NDArray[np.int64], int]":
    """How much more often each value comes in than it is in the reference, for each division.

    Returns:
        The differences of the two shares (divisions, values), in order of the values; and the
        number that stands for 1 in them. They are whole numbers, so that ties stay ties.
    """
    import numpy as np

    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.append(True, values[order][1:] != values[order][:-1]))
    images, incoming = is_incoming.shape[1], int(is_incoming[0].sum())
    steps = np.where(is_incoming[:, order], images - incoming, -incoming)
    return np.add.reduceat(steps, starts, axis=1), (images - incoming) * incoming


def _total_variation(
    labels: "NDArray[np.object_]", is_incoming: "NDArray[np.bool_]"
) -> "NDArray[np.float64]":
    """Half of the summed differences of the shares of labels, for each division."""
    differences, whole = _differences(labels, is_incoming)
    distances: NDArray[np.float64] = abs(differences).sum(axis=1) / (2 * whole)
    return distances


def _kolmogorov_smirnov(
    values: "NDArray[np.float64]", is_incoming: "NDArray[np.bool_]"
) -> "NDArray[np.float64]":
    """The largest difference of the two distribution functions, for each division."""
    differences, whole = _differences(values, is_incoming)
    distances: NDArray[np.float64] = abs(differences.cumsum(axis=1)).max(axis=1) / whole
    return distances
