"""Decides whether the model may go to production: bounds for every model, and the champion to beat.

Both models were scored on the same test split and as they are served, whatever data, code and image
size they come from, so that their metrics can be compared.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from retrain.step import Facts, Step, Workspace
from retrain.store import Artifact
from retrain.workload import Gate
from tasks.data.champion import Champion
from tasks.gate.rules import Rule, better, bounds, not_worse


def gate(rules: Gate, scores: Artifact, champion: Champion, workspace: Workspace) -> Facts:
    """Decides whether a model may go to production.

    A challenger from the same training as the champion, whose package differs (its code was fixed,
    or its precision changed), is the same model: it need not be better, only not worse.

    Returns:
        `passed`; `verdict`: `first`, `better`, `repackaged` (the champion's training in another
        package, not worse), `champion already` (the same package), `not better` or `below bounds`;
        `rules`: for each, the rule in words, the value, the bound and whether it passed;
        `champion`: its version and metrics, or None.
    """
    metrics: Mapping[str, float] = scores.facts["metrics"]  # `evaluate` checks the rules' names
    bounds_rules = bounds(rules, metrics)
    within_bounds = all(rule["passed"] for rule in bounds_rules)
    if champion.version is None:
        return _decision("first" if within_bounds else "below bounds", bounds_rules, None)
    shown = {"version": champion.version, "metrics": dict(champion.metrics)}
    if champion.package_digest == scores.facts["package"]:
        return _decision("champion already", bounds_rules, shown) | {"passed": within_bounds}
    same_training = champion.train_digest == scores.facts["train"]
    compare, success = (not_worse, "repackaged") if same_training else (better, "better")
    lower = rules.metric in scores.facts["lower_is_better"]
    comparison = compare(rules, metrics[rules.metric], champion, lower=lower)
    verdict = success if comparison["passed"] else "not better"
    if not within_bounds:
        verdict = "below bounds"
    return _decision(verdict, [*bounds_rules, comparison], shown)


def _decision(verdict: str, rules: Sequence[Rule], champion: Mapping[str, Any] | None) -> Facts:
    return {
        "passed": verdict in ("first", "better", "repackaged"),
        "verdict": verdict,
        "rules": list(rules),
        "champion": champion,
    }


STEP = Step(
    "gate",
    gate,
    reads=("gate",),
    inputs=("evaluate", "champion"),
    cached=False,
    dry_function=gate,
    hours=1,
)
