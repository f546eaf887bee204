"""Makes up for classes that have few images."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def class_weights(labels: "NDArray[np.int64]", classes: int) -> "NDArray[np.float64]":
    """A weight for each class, larger for rarer ones; the mean over all images is 1.

    It is rows / (classes * images of the class), as scikit-learn's `balanced` (King and Zeng,
    2001).

    Args:
        labels: int64 (rows,), class indices; each class has at least one image.
        classes: How many classes there are.

    Returns:
        float64 (classes,).
    """
    import numpy as np

    return len(labels) / (classes * np.bincount(labels, minlength=classes))
