"""The rules of the gate: bounds that hold for every model, and comparisons with other models."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retrain.faults import did_you_mean
from retrain.project import Project
from retrain.store import Artifact
from retrain.workload import Gate, Workload
from tasks.data.champion import Opponent, Opponents
from tasks.data.metrics import METRICS, split_name
from tasks.data.slices import Slice, Slices, metric_of, parse
from tasks.gate.paired import COMPARABLE, images_needed

# The same network gives slightly different probabilities in batches of another size. A metric that
# counts rows never changes by so little.
ROUNDING = 1e-6

TOO_COARSE = 0.05  # an improvement that cannot be seen, of which a person is warned
SHOWN = 10  # names in a sentence

# The rule in words, the value, the bound and whether it `passed`: None if too few images say so. Of
# some that failed also `says`: all of that and what to do.
Rule = dict[str, Any]


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds rules of the gate about metrics that do not exist, or about slices not asked for."""
    rules = workload.gate
    for name in (*rules.min, *rules.no_worse):
        if (parsed := parse(name)) and parsed[0] not in rules.slices:
            yield f"{name}: add {parsed[0]!r} to gate.slices."
    bounded = {
        **{f"gate.min.{name}": name for name in rules.min if not parse(name)},
        **{f"gate.max.{name}": name for name in rules.max},
    }
    compared = {
        "gate.metric": rules.metric,
        **{f"gate.no_worse: {name}": name for name in rules.no_worse if not parse(name)},
    }
    for place, name in (bounded | compared).items():
        try:
            kind, label = split_name(name)
        except KeyError:
            yield f"{place}: no metric {name!r}.{did_you_mean(name, METRICS)}"
            continue
        if place in compared and label is None and kind not in COMPARABLE:
            yield (
                f"{place}: two models cannot be compared by {name}, only bounded by it in gate.min "
                f"or gate.max. They are compared by {', '.join(COMPARABLE)}, or by the recall, "
                "precision or f1 of a class, such as recall[cat]."
            )


def bounds(
    rules: Gate, scores: Artifact, table: Sequence[Mapping[str, Any]], slices: Slices
) -> list[Rule]:
    """The bounds that every model has to reach or must not exceed.

    A bound is judged on at least `gate.min_compared` images: of its class, of its slice, or all.

    Args:
        rules: The bounds.
        scores: The challenger's evaluation.
        table: As `per_class` gives it.
        slices: Of the test split.

    Raises:
        ValueError: A bound is on a class or a slice that the test split lacks.
    """
    minimum = [
        _of_slices(rules, name, slices.named(*named), bound)
        if (named := parse(name))
        else _bound(rules, scores, table, name, ">=", bound)
        for name, bound in rules.min.items()
    ]
    maximum = [_bound(rules, scores, table, name, "<=", bound) for name, bound in rules.max.items()]
    return minimum + maximum + _of_package(rules, scores)


def _bound(
    rules: Gate,
    scores: Artifact,
    table: Sequence[Mapping[str, Any]],
    name: str,
    relation: str,
    bound: float,
) -> Rule:
    """A bound on a metric, also on one of a class."""
    kind, label = split_name(name)
    if label is not None:
        row = next((row for row in table if row["label"] == label), None)
        if row is None:
            raise ValueError(f"gate: {name}: the test split has no class {label!r}.")
        value, images = float(row[kind]), int(row["rows"])
    elif kind == "worst_class_recall":
        judged = [row for row in table if row["rows"] >= rules.min_compared]
        worst = min(judged or table, key=lambda row: float(row["recall"]))
        value, images = float(worst["recall"]), int(worst["rows"])
    else:
        value, images = scores.facts["metrics"][name], scores.facts["metrics"]["rows"]
    if images >= rules.min_compared:
        return _rule(name, relation, value, bound)
    return _cannot_tell(_rule(name, relation, value, bound, f"{bound:g}, {_few(images)}"))


def _few(images: int) -> str:
    return f"not judged with {images} image{'' if images == 1 else 's'}"


def _cannot_tell(rule: Rule) -> Rule:
    return rule | {"passed": None}


def per_class(scores: Artifact) -> list[dict[str, Any]]:
    """The metrics of each class, as `evaluate` gives them."""
    table: list[dict[str, Any]] = json.loads(
        (scores.folder / "per_class.json").read_text(encoding="utf-8")
    )
    return table


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
    return _cannot_tell(_rule(name, ">=", worst["accuracy"], bound, f"{bound:g}, {_few(images)}"))


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
    found = opponent.comparison
    assert found is not None
    made = []
    for name, of in found["metrics"].items():
        lower = _is_lower_better(name, scores)
        margin = rules.margin if "not worse" in allowed else 0.0
        passed = of["outcome"] in allowed
        surely = "surely"
        if name != rules.metric:
            surely, passed, margin = "not surely worse than", of["outcome"] != "worse", 0.0
        elif lower:
            surely += " <"
        else:
            surely += " >"
        words = f"{name} {surely} {role} {opponent.version} ({of['opponent']:.4f})"
        if margin:
            words += f" {'+' if lower else '-'} {margin:g}"
        bound = of["opponent"] + (margin if lower else -margin)
        made.append({"rule": words, "value": of["challenger"], "bound": bound, "passed": passed})
    return made


def sentences(rules: Gate, role: str, opponent: Opponent) -> list[str]:
    """What a comparison found, for a person.

    Args:
        rules: The metric and the margin.
        role: `champion` or `reference`.
        opponent: The model that was compared.
    """
    found = opponent.comparison
    assert found is not None
    name = f"the {role}, version {opponent.version}"
    said = left_out_as_learnt(found["learnt"], f"this model or {name},")
    said += not_recorded(found["recorded"], f"{name},")
    said += left_out_by_class(found["other_classes"], f"this model or {name},")
    if not found["metrics"]:
        said.append(
            f"Not comparable with {name}: {found['images']} test images are left, and "
            f"gate.min_compared is {rules.min_compared}."
        )
        return said
    if found["absent"]:
        said.append(
            f"The compared images have none of {len(found['absent'])} classes: "
            f"{shortened(found['absent'])}."
        )
    said += [
        f"It cannot be told whether {metric} is worse than that of {name}: fewer than "
        f"{rules.min_compared} images (gate.min_compared)."
        for metric in found["not_compared"]
    ]
    if of := found["metrics"].get(rules.metric):
        said.append(measured(found, rules.metric, name))
        if rules.metric == "accuracy":
            said.append(
                f"{of['gained']} images only this model has right, {of['lost']} only version "
                f"{opponent.version}."
            )
        said.append(resolution(rules, found))
    return said


def resolution(rules: Gate, found: Mapping[str, Any]) -> str:
    """Which improvement the test images show, and how many the margin would need.

    Args:
        rules: The metric and the margin.
        found: As a comparison gives it.
    """
    visible = found["metrics"][rules.metric]["visible"]
    points = rules.metric == "accuracy"
    said = (
        f"With {found['images']:,} test images, an improvement below {_amount(visible, points)} "
        "cannot be seen"
    )
    if rules.margin:
        needed = images_needed(found["images"], visible, rules.margin)
        said += f"; the margin of {_amount(rules.margin, points)} needs about {needed:,}"
    if visible > TOO_COARSE:
        said = f"Warning: {said[0].lower()}{said[1:]}. Add test images"
    return f"{said}."


def about_classes(table: Sequence[Mapping[str, Any]], opponents: Opponents) -> list[str]:
    """What a person should know of single classes: the new ones, and those never predicted.

    Args:
        table: As `per_class` gives it.
        opponents: The models that the challenger was compared with.
    """
    said = [
        f"Class {row['label']!r} is never predicted; it has {row['rows']} test images."
        for row in table
        if row["rows"] and not row["predicted"]
    ]
    return said + [
        f"Class {row['label']!r} is new: the champion does not know it. It has {row['rows']} test "
        f"images, and its recall is {row['recall']:.4f}."
        for row in new_classes(table, opponents)
    ]


def new_classes(table: Sequence[Mapping[str, Any]], opponents: Opponents) -> list[dict[str, Any]]:
    """The classes that the champion does not know: `label`, `rows` and `recall` of each.

    Args:
        table: As `per_class` gives it.
        opponents: The models that the challenger was compared with.
    """
    champion = opponents.champion
    new = champion.comparison["new_classes"] if champion and champion.comparison else ()
    return [
        {name: row[name] for name in ("label", "rows", "recall")}
        for row in table
        if row["label"] in new
    ]


def shortened(names: Sequence[str]) -> str:
    """Some names, the first few if there are many."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def left_out_as_learnt(count: int, names: str, noun: str = "test image") -> list[str]:
    """What is said of the images that were left out because a model was trained on them.

    Args:
        count: How many were left out.
        names: Of the model, or of both with an "or" between them.
        noun: For one image.
    """
    return [f"{counted(count, noun)} left out: {names} was trained on them."] if count else []


def not_recorded(recorded: bool, name: str) -> list[str]:
    """What is said if it is not recorded which images a model was trained on.

    Args:
        recorded: Whether it is.
        name: Of the model.
    """
    if recorded:
        return []
    return [f"It is not recorded which images {name} was trained on; none were left out."]


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
