"""How far what comes in is from a reference, by the spread of the reference itself.

Each feature has a distance from 0 to 1: of labels the total variation distance of their shares, of
numbers the Kolmogorov-Smirnov statistic. Its yardstick is the distance between two samples of the
reference, as large as the two samples: the 99th percentile of so many pairs, drawn with
replacement. The score is the distance in yardsticks: with a score of 1, the two differ as much as
one in a hundred pairs of samples of the reference does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.data.image_facts import FACTS

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
        feature: Its name: `label`, `confidence`, or one of `FACTS`.
        reference: Its mean there; None for labels.
        incoming: Its mean in what comes in; None for labels.
        distance: From 0 to 1.
        yardstick: That of two samples of the reference.
        score: The distance in yardsticks.
    """

    feature: str
    reference: float | None
    incoming: float | None
    distance: float
    yardstick: float
    score: float


def compare(reference: "pa.Table", incoming: "pa.Table", seed: int = 0) -> list[Feature]:
    """Compares two samples with the columns of `tasks.data.image_facts.schema`.

    Args:
        reference: At least one image.
        incoming: At least one image.
        seed: Of the pairs that are drawn.

    Returns:
        The features, labels first.
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
    return found


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
    # Where all of the reference is the same, a single image would differ infinitely.
    least = 1 / min(len(reference), len(incoming))
    yardstick = max(float(np.percentile(pairs, PERCENTILE)), least)
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
