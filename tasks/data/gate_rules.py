"""Says which rules of the gate a model has passed, and by how much two models differ."""

from collections.abc import Mapping, Sequence
from operator import ge, le
from typing import Any

from retrain.workload import Gate
from tasks.data import sample_size

# The rule in words, the value, the bound and whether it `passed`: None if too few images say so. Of
# a comparison it `says` what was found.
Rule = dict[str, Any]
POINTS = " points"
RELATIONS = {">=": ge, "<=": le}


def make_rule(name: str, relation: str, value: float, bound: float, words: str = "") -> Rule:
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
    """What was found of the rules that failed; empty if none has."""
    failed = [rule for rule in rules if rule["passed"] is False]
    return "; ".join(
        rule.get("says") or f"{rule['rule']} fails with {rule['value']:.4g}" for rule in failed
    )


def difference(metric: str, found: Mapping[str, Any]) -> str:
    """The difference between two models in a metric, and its interval.

    Args:
        metric: The metric.
        found: What `tasks.gate.paired.compare` gives.
    """
    low, high = (
        format_change(metric, found[end], "+").removesuffix(POINTS) for end in ("low", "high")
    )
    return f"{format_change(metric, found['difference'], '+')} ({low} to {high})"


def format_change(metric: str, value: float, sign: str = "") -> str:
    """A difference of accuracies in points, or of another metric as it is."""
    if metric == "accuracy":
        return f"{100 * value:{sign}.1f}{POINTS}"
    return f"{value:{sign}.4f}"


def describe_comparison(
    metric: str, opponent: str, found: Mapping[str, Any], allowed: float | None
) -> str:
    """What was found of a metric against another model, and what is allowed.

    Args:
        metric: The metric.
        opponent: The other model, for people.
        found: What `tasks.gate.paired.compare` gives.
        allowed: By how much a model may be worse; 0 if it has to be better, and None if it only
            must not be found to be worse.
    """
    gained, low, high = (found[name] for name in ("difference", "low", "high"))
    words = f"{metric} against {opponent}: {found['outcome']}: "
    words += f"{format_change(metric, abs(gained))} {'worse' if gained < 0 else 'better'}"
    if found["outcome"] == "worse":
        words += f", at least {format_change(metric, -high)}"
    elif low < 0:
        words += f", perhaps {format_change(metric, -low)} worse"
    if allowed is None:
        return words
    limit = f"allowed are {format_change(metric, allowed)}" if allowed else "it has to be better"
    return f"{words}; {limit}"


def describe_margin(rules: Gate, units: Mapping[str, int], images: int, groups: int) -> str | None:
    """Which margin the test images allow, and how many the gate's own one needs.

    Args:
        rules: The metric, the margin and the level.
        units: How many units of the compared images each class has.
        images: How many images were compared.
        groups: How many groups of images that belong together they are; as many if all are alone.

    Returns:
        A sentence; None for a metric without a scale of its own.
    """
    metric, margin = rules.metric, rules.margin
    of_it = sample_size.units_of_metric(metric, units)
    if not all(of_it) or not of_it:
        return None
    smallest = sample_size.smallest_margin(metric, of_it, rules.level)
    if smallest is None:
        return None
    words = (
        f"With {format_image_count(images, groups)}, a model that is as good usually passes with a "
        f"margin of {format_change(metric, smallest)}"
    )
    if 0 < margin < smallest:
        needed = sample_size.units_needed(metric, of_it, rules.level, margin)
        words += f"; that of {format_change(metric, margin)} needs about {needed:,}"
    return f"{words}."


def format_image_count(images: int, groups: int) -> str:
    """How many test images there are, for people, and how many groups if some belong together."""
    if images == groups:
        return f"{images:,} test images"
    return f"{images:,} test images in {groups:,} groups"
