"""How far the features of two samples of images are from each other, as the model sees them.

The features are what the last layer of the model takes. Their distance is the energy coefficient of
Székely and Rizzo ("Energy statistics: A class of statistics based on distances", Journal of
Statistical Planning and Inference 143, 2013), as a root:

    sqrt((2 E|X - Y| - E|X - X'| - E|Y - Y'|) / (2 E|X - Y|))

X and X' are drawn from the one sample, Y and Y' from the other, and |.| is the Euclidean norm. It
is 0 only for two equal distributions, 1 at most, and knows no parameter and no unit.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Spread:
    """How far two samples are from each other, and how far samples of the first one are.

    Attributes:
        distance: From 0 to 1.
        pairs: Of as many pairs of samples of the first one as were drawn.
    """

    distance: float
    pairs: "NDArray[np.float64]"


def spread(
    reference: "NDArray[np.float32]", incoming: "NDArray[np.float32]", pairs: int, seed: int
) -> Spread:
    """Compares two samples with each other, and pairs of samples of the first, as large as the two.

    Args:
        reference: (N, D).
        incoming: (M, D).
        pairs: How many are drawn, with replacement.
        seed: Of what is drawn.
    """
    import numpy as np

    one, other = (each.astype(np.float64) for each in (reference, incoming))
    within, rows = _distances(one, one), len(one)
    found = _coefficient(
        _distances(one, other).mean(), within.mean(), _distances(other, other).mean()
    )
    rng = np.random.default_rng(seed)
    # How often each row is drawn decides all means: no pair needs distances of its own.
    drawn = [
        np.stack([np.bincount(rng.integers(rows, size=size), minlength=rows) for _ in range(pairs)])
        / size
        for size in (rows, len(other))
    ]
    means = [
        np.einsum("ij,ij->i", drawn[left] @ within, drawn[right])
        for left, right in ((0, 1), (0, 0), (1, 1))
    ]
    return Spread(float(found), _coefficient(*means))


def _coefficient(
    between: "NDArray[np.float64]", first: "NDArray[np.float64]", second: "NDArray[np.float64]"
) -> "NDArray[np.float64]":
    """The root of the energy coefficient, from the mean distances."""
    import numpy as np

    twice = 2 * np.asarray(between)
    energy = np.maximum(twice - first - second, 0)  # rounding may make it negative
    return np.sqrt(np.divide(energy, twice, out=np.zeros_like(twice), where=twice > 0))


def _distances(one: "NDArray[np.float64]", other: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """The Euclidean distance of each row to each row: (N, M) from (N, D) and (M, D)."""
    import numpy as np

    squares = [np.einsum("ij,ij->i", each, each) for each in (one, other)]
    squared = squares[0][:, None] + squares[1] - 2 * one @ other.T
    distances: NDArray[np.float64] = np.sqrt(np.maximum(squared, 0))
    return distances
