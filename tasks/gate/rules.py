"""The rules of the gate: bounds that hold for every model, and the comparison with the champion."""

from collections.abc import Mapping
from typing import Any

from retrain.workload import Gate
from tasks.data.champion import Champion

# The same network gives slightly different probabilities in batches of another size. A metric that
# counts rows never changes by so little.
ROUNDING = 1e-6

Rule = dict[str, Any]  # the rule in words, the value, the bound and whether it passed


def bounds(rules: Gate, metrics: Mapping[str, float]) -> list[Rule]:
    """The bounds that every model has to reach or must not exceed."""
    minimum = [_rule(name, ">=", metrics[name], bound) for name, bound in rules.min.items()]
    maximum = [_rule(name, "<=", metrics[name], bound) for name, bound in rules.max.items()]
    return minimum + maximum


def better(rules: Gate, value: float, champion: Champion, *, lower: bool) -> Rule:
    """Strictly better than the champion by more than the margin: a tie keeps the champion.

    Args:
        rules: The metric and the margin.
        value: The challenger's metric.
        champion: The model it is compared with.
        lower: Whether a lower value is the better one.
    """
    champion_value = champion.metrics[rules.metric]
    bound = champion_value - rules.margin if lower else champion_value + rules.margin
    words = _words(champion, champion_value)
    if rules.margin:
        words += f" {'-' if lower else '+'} {rules.margin:g}"
    return _rule(rules.metric, "<" if lower else ">", value, bound, words)


def not_worse(rules: Gate, value: float, champion: Champion, *, lower: bool) -> Rule:
    """As good as the champion except for rounding, without a margin; the arguments of `better`."""
    champion_value = champion.metrics[rules.metric]
    bound = champion_value + ROUNDING if lower else champion_value - ROUNDING
    return _rule(
        rules.metric, "<=" if lower else ">=", value, bound, _words(champion, champion_value)
    )


def _words(champion: Champion, value: float) -> str:
    return f"champion {champion.version} ({value:.4f})"


def _rule(name: str, relation: str, value: float, bound: float, words: str = "") -> Rule:
    passed = {">=": value >= bound, "<=": value <= bound, ">": value > bound, "<": value < bound}
    return {
        "rule": f"{name} {relation} {words or f'{bound:g}'}",
        "value": value,
        "bound": bound,
        "passed": passed[relation],
    }
