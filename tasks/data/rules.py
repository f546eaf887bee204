"""Says which rules of the gate a model has passed, and by how much two models differ."""

from collections.abc import Mapping, Sequence
from operator import ge, le
from typing import Any

from retrain.workload import Gate

# The rule in words, the value, the bound and whether it `passed`: None if too few images say so.
Rule = dict[str, Any]
POINTS = " points"
RELATIONS = {">=": ge, "<=": le}


def rule_of(name: str, relation: str, value: float, bound: float, words: str = "") -> Rule:
    """A rule with a bound.

    Args:
        name: Of the value.
        relation: `>=` or `<=`, of the value to the bound.
        value: As it was measured.
        bound: The bound.
        words: What follows the bound.
    """
    return {
        "rule": f"{name} {relation} {bound:g}{words}",
        "value": value,
        "bound": bound,
        "passed": RELATIONS[relation](value, bound),
    }


def failures(rules: Sequence[Mapping[str, Any]]) -> str:
    """The rules that failed, with their values; empty if none has."""
    failed = [rule for rule in rules if rule["passed"] is False]
    return "; ".join(f"{rule['rule']} fails with {rule['value']:.4g}" for rule in failed)


def difference(metric: str, found: Mapping[str, Any]) -> str:
    """The difference between two models in a metric, and its interval.

    Args:
        metric: The metric.
        found: What `tasks.gate.paired.compare` gives.
    """
    low, high = (amount(metric, found[end], "+").removesuffix(POINTS) for end in ("low", "high"))
    return f"{amount(metric, found['difference'], '+')} ({low} to {high})"


def amount(metric: str, value: float, sign: str = "") -> str:
    """A difference of accuracies in points, or of another metric as it is."""
    if metric == "accuracy":
        return f"{100 * value:{sign}.1f}{POINTS}"
    return f"{value:{sign}.4f}"


def resolution(rules: Gate, images: int, found: Mapping[str, Any]) -> str:
    """Which improvement the test images show, and how many the margin would need.

    Args:
        rules: The metric and the margin.
        images: How many were compared.
        found: What `tasks.gate.paired.compare` gives for that metric.
    """
    metric, visible = rules.metric, found["visible"]
    words = (
        f"With {images:,} test images, an improvement below {amount(metric, visible)}"
        f" cannot be seen"
    )
    if 0 < rules.margin < visible:
        needed = images_needed(images, visible, rules.margin)
        words += f"; the margin of {amount(metric, rules.margin)} needs about {needed:,}"
    return f"{words}."


def images_needed(images: int, visible: float, margin: float) -> int:
    """With how many test images a difference of the margin would be seen.

    What can be seen shrinks with the root of the number of images: Connor (1987), equation 1.

    Args:
        images: The number of images that were compared.
        visible: The smallest difference that they show, as `tasks.gate.paired.compare` gives it.
        margin: The margin, more than 0.
    """
    return round(images * (visible / margin) ** 2)
