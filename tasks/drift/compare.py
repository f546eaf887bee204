"""How far what comes in is from a reference, by the spread of the reference itself.

Each feature has a distance from 0 to 1: of labels the total variation distance of their shares, of
numbers the Kolmogorov-Smirnov statistic, of embeddings that of `tasks.drift.embedding`. Its
yardstick is the distance between two samples of the reference, as large as the two samples: the
99th percentile of so many pairs, drawn with replacement. The score is the distance in yardsticks:
with a score of 1, the two differ as much as one in a hundred pairs of samples of the reference
does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.data.image_facts import FACTS
from tasks.drift.embedding import spread

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

PAIRS = 500
PERCENTILE = 99
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
        yardstick: That of two samples of the reference; None as above.
        score: The distance in yardsticks; None as above.
    """

    feature: str
    reference: float | None
    incoming: float | None
    distance: float | None
    yardstick: float | None
    score: float | None


def compare(reference: "pa.Table", incoming: "pa.Table", seed: int = 0) -> list[Feature]:
    """Compares two samples with the columns of `tasks.data.image_facts.schema`.

    Args:
        reference: At least one image.
        incoming: At least one image.
        seed: Of the pairs that are drawn.

    Returns:
        The features: labels first, the embedding last.
    """
    import numpy as np

    names = sorted({*reference["label"].to_pylist(), *incoming["label"].to_pylist()})
    place = {name: index for index, name in enumerate(names)}
    labels = [
        np.array([place[name] for name in table["label"].to_pylist()])
        for table in (reference, incoming)
    ]
    found = [_feature("label", labels, lambda a, b: _total_variation(a, b, len(names)), seed)]
    for name in NUMBERS:
        numbers = [table[name].to_numpy().astype(np.float64) for table in (reference, incoming)]
        found.append(_feature(name, numbers, _kolmogorov_smirnov, seed))
    return [*found, _embedding(reference, incoming, seed)]


def shares(reference: "pa.Table", incoming: "pa.Table") -> list[dict[str, str | float]]:
    """The share of each label in both samples."""
    counted = []
    for table in (reference, incoming):
        counts = table["label"].value_counts().to_pylist()
        counted.append({each["values"]: each["counts"] / len(table) for each in counts})
    then, now = counted
    return [
        {"label": name, "reference": then.get(name, 0.0), "incoming": now.get(name, 0.0)}
        for name in sorted({*then, *now})
    ]


def _feature(
    name: str,
    samples: "Sequence[NDArray[np.float64]]",
    distance: "Callable[[NDArray[np.float64], NDArray[np.float64]], float]",
    seed: int,
) -> Feature:
    import numpy as np

    reference, incoming = samples
    rng = np.random.default_rng(seed)
    pairs = [
        distance(*(rng.choice(reference, size=len(each)) for each in (reference, incoming)))
        for _ in range(PAIRS)
    ]
    yardstick = _yardstick(pairs, len(reference), len(incoming))
    found = distance(reference, incoming)
    is_number = name != "label"
    return Feature(
        feature=name,
        reference=float(reference.mean()) if is_number else None,
        incoming=float(incoming.mean()) if is_number else None,
        distance=found,
        yardstick=yardstick,
        score=found / yardstick,
    )


def _embedding(reference: "pa.Table", incoming: "pa.Table", seed: int) -> Feature:
    """The feature `embedding`, of those images that have one."""
    import numpy as np

    tables = (reference, incoming)
    samples = [table["features"].drop_null().to_numpy() for table in tables]
    if not all(map(len, samples)):
        return Feature("embedding", None, None, None, None, None)
    one, other = map(np.stack, samples)
    found = spread(one, other, PAIRS, seed)
    yardstick = _yardstick(found.pairs, len(one), len(other))
    score = found.distance / yardstick
    return Feature("embedding", None, None, found.distance, yardstick, score)


def _yardstick(
    pairs: "Sequence[float] | NDArray[np.float64]", reference: int, incoming: int
) -> float:
    """The distance that few pairs of samples of the reference exceed.

    Where all of the reference is the same, a single image would differ infinitely: so the yardstick
    is at least what one image of the smaller sample can change.
    """
    import numpy as np

    return max(float(np.percentile(pairs, PERCENTILE)), 1 / min(reference, incoming))


def _total_variation(one: "NDArray[np.float64]", other: "NDArray[np.float64]", count: int) -> float:
    """Half of the summed differences of the shares of numbered labels."""
    import numpy as np

    shares = [np.bincount(each, minlength=count) / len(each) for each in (one, other)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def _kolmogorov_smirnov(one: "NDArray[np.float64]", other: "NDArray[np.float64]") -> float:
    """The largest difference of the two distribution functions."""
    import numpy as np

    values = np.concatenate([one, other])
    below = [
        np.searchsorted(np.sort(each), values, side="right") / len(each) for each in (one, other)
    ]
    return float(np.abs(below[0] - below[1]).max())
