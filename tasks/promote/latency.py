"""Tells how long a package takes for a single image, and judges that by the gate's bound.

The package is measured in the process that has just checked its answers, which loads it as a server
would. Each call classifies one encoded image, as a request would, on one thread.
"""

from collections.abc import Mapping
from typing import Any

from retrain.registry.versions import Latency
from tasks.data.rules import Rule, rule_of

BOUND = "gate.max_latency_ms"


def summarise(timed: Mapping[str, Any]) -> Latency:
    """How long a package takes for a single image, by what `answer.time_calls` has measured."""
    import numpy as np

    seconds = timed["seconds"]
    p50, p95 = np.percentile(seconds, [50, 95], method="inverted_cdf")  # by nearest rank
    return Latency(
        p50=round(1000 * float(p50), 3),
        p95=round(1000 * float(p95), 3),
        calls=len(seconds),
        threads=timed["threads"],
        device=timed["device"],
    )


def rules_of(bound: float | None, latency: Latency | None) -> list[Rule]:
    """The rule about the latency, as the gate's other rules; none without a bound or a measure."""
    if bound is None or latency is None:
        return []
    return [rule_of("p95 of a single image", "<=", latency.p95, bound, " ms") | {"of": BOUND}]


def bound_of(document: Mapping[str, Any]) -> float | None:
    """The bound that a decision was made by; None if there was none."""
    rules = document.get("rules", ())
    return next((rule["bound"] for rule in rules if rule.get("of") == BOUND), None)
