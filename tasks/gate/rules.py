"""The rules of the gate: bounds that hold for every model, and comparisons with other models."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retrain.faults import did_you_mean
from retrain.project import Project
from retrain.store import Artifact
from retrain.workload import Gate, Workload
from tasks.data.champion import Opponent
from tasks.data.metrics import METRICS, metric_named
from tasks.data.slices import Slice, Slices, metric_of, parse

# The same network gives slightly different probabilities in batches of another size. A metric that
# counts rows never changes by so little.
ROUNDING = 1e-6

# The rule in words, the value, the bound and whether it passed; and, of some that failed, `says`:
# all of that and what to do.
Rule = dict[str, Any]


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds rules of the gate about metrics that do not exist, or about slices not asked for."""
    rules = workload.gate
    for name in (*rules.min, *rules.no_worse):
        if (parsed := parse(name)) and parsed[0] not in rules.slices:
            yield f"{name}: add {parsed[0]!r} to gate.slices."
    named = {
        **{f"gate.min.{name}": name for name in rules.min if not parse(name)},
        **{f"gate.max.{name}": name for name in rules.max},
        **{f"gate.no_worse: {name}": name for name in rules.no_worse if not parse(name)},
        "gate.metric": rules.metric,
    }
    for place, name in named.items():
        try:
            metric_named(name)
        except KeyError:
            yield f"{place}: no metric {name!r}.{did_you_mean(name, METRICS)}"


def bounds(rules: Gate, scores: Artifact, slices: Slices) -> list[Rule]:
    """The bounds that every model has to reach or must not exceed.

    Raises:
        ValueError: A bound is on a class or a slice that the test split lacks.
    """
    minimum = [
        _of_slices(rules, name, slices.named(*named), bound)
        if (named := parse(name))
        else _rule(name, ">=", _value(scores, name), bound)
        for name, bound in rules.min.items()
    ]
    maximum = [_rule(name, "<=", _value(scores, name), bound) for name, bound in rules.max.items()]
    return minimum + maximum + _of_package(rules, scores)


def _of_package(rules: Gate, scores: Artifact) -> list[Rule]:
    """That the package is no larger than is allowed, if there is a bound."""
    bound = rules.max_package_mb
    if bound is None:
        return []
    size = scores.facts["package_bytes"] / 1e6
    rule = _rule("size of the package", "<=", size, bound, f"{bound:g} MB")
    if not rule["passed"]:
        rule["says"] = (
            f"the package has {size:.4g} MB, more than gate.max_package_mb: {bound:g}; take a "
            "smaller network, or raise the bound"
        )
    return [rule]


def _of_slices(rules: Gate, name: str, slices: Sequence[Slice], bound: float) -> Rule:
    """That the worst of some slices reaches a bound, of those with enough images."""
    judged = [each for each in slices if is_judged(rules, each)]
    worst = min(judged or slices, key=lambda each: float(each["accuracy"]))
    if judged:
        return _rule(metric_of(worst), ">=", worst["accuracy"], bound)
    images = max(each["images"] for each in slices)
    words = f"{bound:g}, not judged with {images} images"
    return _rule(name, ">=", worst["accuracy"], bound, words) | {"passed": True}


def is_judged(rules: Gate, one: Slice) -> bool:
    """Whether a slice has enough images."""
    return int(one["images"]) >= rules.min_compared


def same_training(rules: Gate, scores: Artifact, champion: Opponent) -> Rule:
    """As good as the champion except for rounding: both are the same weights."""
    lower = _is_lower_better(rules.metric, scores)
    theirs = champion.metrics[rules.metric]
    bound = theirs + ROUNDING if lower else theirs - ROUNDING
    value = scores.facts["metrics"][rules.metric]
    words = f"champion {champion.version} ({theirs:.4f})"
    return _rule(rules.metric, "<=" if lower else ">=", value, bound, words)


def comparisons(
    rules: Gate, scores: Artifact, role: str, opponent: Opponent, allowed: tuple[str, ...]
) -> list[Rule]:
    """What a comparison has to find: a rule for the metric, and one for each of `gate.no_worse`.

    Args:
        rules: The metrics and the margin.
        scores: The challenger's evaluation.
        role: `champion` or `reference`.
        opponent: The model that was compared.
        allowed: The outcomes of the comparison that pass.
    """
    assert opponent.comparison is not None
    made = []
    for name, found in opponent.comparison["metrics"].items():
        lower = _is_lower_better(name, scores)
        margin = rules.margin if "not worse" in allowed else 0.0
        passed = found["outcome"] in allowed
        surely = "surely"
        if name != rules.metric:
            surely, passed, margin = "not surely worse than", found["outcome"] != "worse", 0.0
        elif lower:
            surely += " <"
        else:
            surely += " >"
        words = f"{name} {surely} {role} {opponent.version} ({found['opponent']:.4f})"
        if margin:
            words += f" {'+' if lower else '-'} {margin:g}"
        bound = found["opponent"] + (margin if lower else -margin)
        value = found["challenger"]
        made.append({"rule": words, "value": value, "bound": bound, "passed": passed})
    return made


def sentences(rules: Gate, role: str, opponent: Opponent, number: int) -> list[str]:
    """What a comparison found, for a person.

    Args:
        rules: The metric.
        role: `champion` or `reference`.
        opponent: The model that was compared.
        number: Of the comparison, among those on the same test images.
    """
    found = opponent.comparison
    assert found is not None
    name = f"the {role}, version {opponent.version}"
    said = left_out_as_learnt(found, f"{name},")
    said += left_out_by_class(found["other_classes"], f"this model or {name},")
    if not found["metrics"]:
        said.append(
            f"Not comparable with {name}: {found['images']} test images are left, and "
            f"gate.min_compared is {rules.min_compared}."
        )
        return said
    metric, of = rules.metric, found["metrics"][rules.metric]
    points = metric == "accuracy"
    said.append(measured(found, metric, name))
    if points:
        said.append(
            f"{of['gained']} images only this model has right, {of['lost']} only version "
            f"{opponent.version}."
        )
    said.append(
        f"With {found['images']:,} images a difference below {_amount(of['visible'], points)} "
        "cannot be seen."
    )
    if number > 1:
        said.append(
            f"This is comparison {number} on these test images; each further one has to be surer. "
            "Fresh test images begin anew."
        )
    return said


def left_out_as_learnt(found: Mapping[str, Any], name: str, noun: str = "test image") -> list[str]:
    """What is said of the images that a model was trained on.

    Args:
        found: How many of them were left out, `learnt`; and whether they are known, `recorded`.
        name: Of the model.
        noun: For one image.
    """
    said = []
    if found["learnt"]:
        said.append(f"{counted(found['learnt'], noun)} left out: {name} was trained on them.")
    if not found["recorded"]:
        said.append(f"It is not recorded which images {name} was trained on; none were left out.")
    return said


def left_out_by_class(count: int, names: str, noun: str = "test image") -> list[str]:
    """What is said of the images whose class one of two models does not know.

    Args:
        count: How many were left out.
        names: Of both models, with an "or" between them.
        noun: For one image.
    """
    if not count:
        return []
    return [
        f"{counted(count, noun)} left out: {names} does not know their classes. The comparison is "
        "of the classes that both know."
    ]


def measured(found: Mapping[str, Any], metric: str, against: str) -> str:
    """The difference between two models in a metric, and how surely it is known.

    Args:
        found: As a comparison gives it.
        metric: One of its metrics.
        against: The name of the opponent.
    """
    of, points = found["metrics"][metric], metric == "accuracy"
    return (
        f"{metric.capitalize()} is {_amount(of['difference'], points, sign=True)} against "
        f"{against}, on {found['images']:,} images: {OUTCOMES[of['outcome']]}. The true difference "
        f"is between {_amount(of['low'], points, sign=True)} and "
        f"{_amount(of['high'], points, sign=True)} (wrong on either side in "
        f"{100 * found['level']:.2g} % of cases)."
    )


OUTCOMES = {
    "better": "better",
    "not worse": "not worse, except by less than the margin",
    "worse": "worse",
    "cannot tell": "it cannot be told which is better",
}


def _amount(value: float, points: bool, *, sign: bool = False) -> str:
    """A difference of accuracies in points, or of another metric as it is."""
    form = "+" if sign else ""
    return f"{100 * value:{form}.1f} points" if points else f"{value:{form}.4f}"


def counted(count: int, noun: str = "test image") -> str:
    """Some images, as the subject of a sentence about what was done with them."""
    return f"{count:,} {noun}{' was' if count == 1 else 's were'}"


def _value(scores: Artifact, name: str) -> float:
    """A metric of the challenger, by its name, also one of a class."""
    metrics: Mapping[str, float] = scores.facts["metrics"]
    if name in metrics:
        return metrics[name]
    kind, _, label = name.removesuffix("]").partition("[")
    table = json.loads((scores.folder / "per_class.json").read_text(encoding="utf-8"))
    for row in table:
        if row["label"] == label:
            return float(row[kind])
    raise ValueError(f"gate: {name}: the test split has no class {label!r}.")


def _is_lower_better(name: str, scores: Artifact) -> bool:
    return name in scores.facts["lower_is_better"]


def _rule(name: str, relation: str, value: float, bound: float, words: str = "") -> Rule:
    passed = value >= bound if relation == ">=" else value <= bound
    return {
        "rule": f"{name} {relation} {words or f'{bound:g}'}",
        "value": value,
        "bound": bound,
        "passed": passed,
    }
