"""The rules of the gate: bounds that hold for every model, and the comparison with the champion."""

from collections.abc import Mapping
from typing import Any

from retrain.workload import Gate
from tasks.data.champion import Champion

# One network gives slightly other probabilities in batches of another size; no metric that counts
# rows moves by so little.
ROUNDING = 1e-6

Rule = dict[str, Any]  # its words, the value, the bound and whether it passed


def bounds(rules: Gate, metrics: Mapping[str, float]) -> list[Rule]:
    """What every model has to reach or must not exceed."""
    least = [_rule(name, ">=", metrics[name], bound) for name, bound in rules.min.items()]
    most = [_rule(name, "<=", metrics[name], bound) for name, bound in rules.max.items()]
    return least + most


def better(rules: Gate, value: float, champion: Champion, *, lower: bool) -> Rule:
    """Strictly better than the champion by more than the margin: a tie keeps the champion.

    Args:
        rules: The metric and the margin.
        value: The challenger's.
        champion: What it is compared with.
        lower: Whether a lower value is the better one.
    """
    theirs = champion.metrics[rules.metric]
    bound = theirs - rules.margin if lower else theirs + rules.margin
    words = _words(champion, theirs)
    if rules.margin:
        words += f" {'-' if lower else '+'} {rules.margin:g}"
    return _rule(rules.metric, "<" if lower else ">", value, bound, words)


def not_worse(rules: Gate, value: float, champion: Champion, *, lower: bool) -> Rule:
    """As good as the champion but for rounding, without a margin; the arguments are `better`'s."""
    theirs = champion.metrics[rules.metric]
    bound = theirs + ROUNDING if lower else theirs - ROUNDING
    return _rule(rules.metric, "<=" if lower else ">=", value, bound, _words(champion, theirs))


def _words(champion: Champion, theirs: float) -> str:
    return f"champion {champion.version} ({theirs:.4f})"


def _rule(name: str, relation: str, value: float, bound: float, words: str = "") -> Rule:
    passed = {">=": value >= bound, "<=": value <= bound, ">": value > bound, "<": value < bound}
    return {
        "rule": f"{name} {relation} {words or f'{bound:g}'}",
        "value": value,
        "bound": bound,
        "passed": passed[relation],
    }
