"""How far the features of two samples of images are from each other, as the model sees them.

The features are what the last layer of the model takes. Their distance is the energy coefficient of
Székely and Rizzo ("Energy statistics: A class of statistics based on distances", Journal of
Statistical Planning and Inference 143, 2013), as a root:

    sqrt((2 E|X - Y| - E|X - X'| - E|Y - Y'|) / (2 E|X - Y|))

X and X' are drawn from the one sample, Y and Y' from the other, and |.| is the Euclidean norm. It
is 0 only for two equal distributions, 1 at most, and knows no parameter and no unit.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def energy(
    features: "NDArray[np.float32]", is_incoming: "NDArray[np.bool_]"
) -> "NDArray[np.float64]":
    """The distance of two samples, for each division of the same images into two.

    Args:
        features: (N, D), of the images of both samples.
        is_incoming: (divisions, N), which images belong to the second one.

    Returns:
        (divisions,), from 0 to 1.
    """
    import numpy as np

    apart = _distances(features.astype(np.float64))
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
    distances: NDArray[np.float64] = np.sqrt(shares)
    return distances


def _distances(rows: "NDArray[np.float64]") -> "NDArray[np.float64]":
    """The Euclidean distance of each row to each row: (N, N) from (N, D)."""
    import numpy as np

    squares = np.einsum("ij,ij->i", rows, rows)
    distances: NDArray[np.float64] = np.sqrt(
        np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0)
    )
    return distances
