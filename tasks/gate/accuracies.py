"""How surely two accuracies differ, given the images that only one of two models has right.

The random weights of the images, as `tasks/gate/paired.py` has them, need not be drawn here: their
sums have beta distributions.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

QUANTILES = 2000  # of the share of differing images; by them the probability is averaged


def p_value(gained: int, lost: int, rows: int, difference: float) -> float:
    """The probability that the true difference of two accuracies is at most an assumed one.

    The weights of the images that were lost (and the unseen one), of those that were gained and of
    the others have a Dirichlet distribution. The sum of the first two has a beta distribution, and
    so has the share of the gained ones in it, independently: the probability is averaged over the
    quantiles of the sum.

    Args:
        gained: Images that only the challenger classifies correctly.
        lost: Images that only the opponent classifies correctly.
        rows: All images.
        difference: The assumed difference; 0 gives McNemar's exact test.
    """
    import numpy as np
    from scipy.special import betainc
    from scipy.stats import beta

    same = rows - gained - lost
    if gained == 0:
        return float(beta.sf(-difference, lost + 1, same)) if same else float(difference >= -1)
    share = np.clip((1 + difference / _differing(gained + lost, same)) / 2, 0, 1)
    return float(np.mean(betainc(gained, lost + 1, share)))


@lru_cache(1024)
def _differing(images: int, same: int) -> "NDArray[np.float64]":
    """The quantiles of the weight of the images on which two models differ, and the unseen one.

    Args:
        images: On which the two models differ.
        same: On which they do not.
    """
    import numpy as np
    from scipy.stats import beta

    if not same:
        return np.ones(1)
    places = (np.arange(QUANTILES) + 0.5) / QUANTILES
    quantiles: NDArray[np.float64] = beta.ppf(places, images + 1, same)
    return quantiles


def lower_limit(gained: int, lost: int, rows: int, level: float) -> float:
    """The lower limit of the difference of two accuracies.

    Args:
        gained: Images that only the challenger classifies correctly.
        lost: Images that only the opponent classifies correctly.
        rows: All images.
        level: The probability that the true difference is below it.
    """
    from scipy.optimize import brentq

    if p_value(gained, lost, rows, -1.0) >= level:  # every image was lost
        return -1.0
    return float(brentq(lambda limit: p_value(gained, lost, rows, limit) - level, -1.0, 1.0))
