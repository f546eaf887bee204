"""How many test images a comparison of two models needs, from one stated assumption.

The assumption is that two equally good models answer a tenth of the images differently, as two
trainings on the same data usually do. A margin is large enough if such a model is then found to be
not worse in more than four of five draws of the test images; `tasks.gate.paired` decides that, and
a test compares the two. Images that belong together count once: a unit is an image that is alone,
or a group of them.

Source: Connor (1987), Sample size for testing differences in proportions for the paired-sample
design, equation 1; with the unseen unit of `tasks.gate.paired`, which the challenger loses.
"""

from collections.abc import Mapping, Sequence
from math import ceil, sqrt

import pyarrow as pa

from tasks.data.metrics import split_name

DIFFERING = 0.1  # the share of test images that two trainings usually answer differently
POWER = 0.9  # of a normal approximation, which is 0.8 or more of the decision itself
MOST = 1e9  # times as many units as there are, for any margin of use
UNSEEN = 1.5  # units: as many as the unseen one usually counts for


def units_of(labels: pa.ChunkedArray, groups: pa.ChunkedArray) -> dict[str, int]:
    """How many units each class has, by its name.

    Args:
        labels: The class of each image.
        groups: A number for each image, the same for those that belong together.
    """
    table = pa.table({"label": labels, "group": groups})
    counted = table.group_by("label").aggregate([("group", "count_distinct")])
    rows = counted.sort_by("label").to_pylist()
    return {row["label"]: row["group_count_distinct"] for row in rows}


def units_of_metric(metric: str, units: Mapping[str, int]) -> list[int]:
    """The units that a metric is of: those of each class, or of the one that it names."""
    _, label = split_name(metric)
    return [*units.values()] if label is None else [units.get(label, 0)]


def smallest_margin(metric: str, units: Sequence[float], level: float) -> float | None:
    """The smallest margin with which an equally good model usually passes as not worse.

    Args:
        metric: What is compared.
        units: How many units of the test split it is of, by class; at least one each.
        level: The probability of an error.

    Returns:
        A difference of the metric; None for `log_loss`, which has no scale of its own.
    """
    if metric == "log_loss":
        return None
    from scipy.stats import norm

    kind, label = split_name(metric)
    if kind == "accuracy" or label is not None:
        units = [sum(units)]
    classes = len(units)
    variance = DIFFERING * sum(1 / count for count in units) / classes**2
    reach = float(norm.isf(level) + norm.ppf(POWER))
    return reach * sqrt(variance) + UNSEEN / (classes * (min(units) + 1))


def units_needed(metric: str, units: Sequence[int], level: float, margin: float) -> int | None:
    """How many units a test split with the same shares of classes needs for a margin.

    Args:
        metric: As `smallest_margin` takes it, like the next two.
        units: How many units of the test split each class has.
        level: The probability of an error.
        margin: More than 0.

    Returns:
        As many as the split has, or more; None where `smallest_margin` is None.
    """
    from scipy.optimize import brentq

    def above(factor: float) -> float:
        return (smallest_margin(metric, [count * factor for count in units], level) or 0) - margin

    if smallest_margin(metric, units, level) is None:
        return None
    return ceil(sum(units) * (brentq(above, 1.0, MOST) if above(1.0) > 0 else 1))
