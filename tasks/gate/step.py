"""Decides whether the model may go to production: by bounds, and by comparison with other models.

The model is compared with the champion, which is in production, and with the reference, which is
the best so far. All were scored on the same test split and as they are served, whatever data, code
and image size they come from.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retrain.errors import did_you_mean, validate
from retrain.params import as_yaml, params_entry
from retrain.project import Project
from retrain.step import Facts, task
from retrain.store import Artifact
from retrain.workload import Gate, Workload
from tasks.data.champion import Opponent
from tasks.data.gate_rules import (
    Rule,
    describe_comparison,
    describe_margin,
    difference,
    failures,
    format_change,
    format_image_count,
    make_rule,
)
from tasks.data.metrics import CLASSES, LOWER_IS_BETTER, METRICS, split_name
from tasks.data.slices import find_slices, metric_of, parse_metric
from tasks.gate.paired import COMPARABLE

# The same network gives slightly different probabilities in batches of another size. A metric that
# counts rows never changes by so little.
ROUNDING = 1e-6

ALREADY = "champion already"
BOUNDS = {"min": ">=", "max": "<="}
SHOWN = 10  # names in a sentence
PASSES = ("first", "repackaged", ALREADY)  # within the bounds, beside what `promotes` names


def check(workload: Workload, project: Project) -> Iterator[str]:
    """Finds rules of the gate about metrics that do not exist, or about slices not asked for."""
    rules = workload.gate
    bounded = {f"gate.{bound}.{name}": name for bound in BOUNDS for name in getattr(rules, bound)}
    compared = {f"gate.no_worse: {name}": name for name in rules.no_worse}
    for place, name in (bounded | compared | {"gate.metric": rules.metric}).items():
        column = parse_metric(name)
        if column and not place.startswith(("gate.max", "gate.metric")):
            if column[0] not in rules.slices:
                yield f"{name}: add {column[0]!r} to gate.slices."
            continue
        try:
            kind, label = split_name(name)
        except KeyError:
            yield f"{place}: no metric {name!r}.{did_you_mean(name, METRICS)}"
            continue
        if place not in bounded and label is None and kind not in COMPARABLE:
            yield (
                f"{place}: two models cannot be compared by {name}, only bounded by it in gate.min "
                f"or gate.max. They are compared by {', '.join(COMPARABLE)}, or by the recall, "
                "precision or f1 of a class, such as recall[cat]."
            )


@task(reads=("gate",), hours=1, check=check)
def gate(
    rules: Gate, scores: Artifact, champion: Opponent | None, reference: Opponent | None
) -> Facts:
    """Decides whether a model may go to production.

    A challenger from the same training as the champion, whose package differs (its code was fixed,
    or its precision changed), is the same model: it has to be no worse than the margin allows.

    Args:
        rules: The rules of the gate.
        scores: The challenger's evaluation.
        champion: The model in production; None when there is none yet.
        reference: The best model so far, if that is another one.

    Returns:
        `passed`; `verdict`: `first`, `better`, `not worse`, `worse`, `cannot tell`, `not
        comparable`, `repackaged` (the champion's training in another package, not worse), `champion
        already` (the same package), or `below bounds`; `metric`, by which it was compared; `rules`:
        for each, the rule in words, the value, the bound and whether it passed; `champion`: its
        version and metrics, or None; `comparisons`, what was found, by role; `slices`, as
        `evaluate` gives them, and whether each was `judged`; `says`, the same for a person;
        `new_classes`, those that the champion does not know; `test_images`, their identity; and
        `reference`, whether the model becomes the reference if it is promoted.
    """
    table = json.loads((scores.folder / CLASSES).read_text(encoding="utf-8"))["classes"]
    bounded = bounds(rules, scores, table, is_first=champion is None)
    roles = {"champion": champion, "reference": reference}
    against = {role: each for role, each in roles.items() if each and each.comparison}
    verdict, compared, becomes = _verdict(rules, scores, champion, reference, against)
    within = not failures(bounded)
    passed = within and verdict in (*PASSES, *rules.promotes)
    says = [] if verdict == ALREADY else [_baseline(table)]
    if verdict != ALREADY:
        for role, opponent in against.items():
            says += _sentences(rules, role, opponent)
        verdict = verdict if within else "below bounds"
    new = champion.comparison["new_classes"] if champion and champion.comparison else ()
    return {
        "passed": passed,
        "verdict": verdict,
        "metric": rules.metric,
        "rules": bounded + compared,
        "champion": champion and {"version": champion.version, "metrics": dict(champion.metrics)},
        "comparisons": {
            role: {"version": opponent.version, **(opponent.comparison or {})}
            for role, opponent in against.items()
        },
        "says": says + _never_predicted(table),
        "test_images": scores.facts["test_images"],
        "reference": becomes,
        "new_classes": [
            {name: row[name] for name in ("label", "rows", "recall")}
            for row in table
            if row["label"] in new
        ],
        "slices": [
            part | {"judged": part["images"] >= rules.min_compared}
            for part in scores.facts["slices"]
        ],
    }


def changed_rules(workload: Workload) -> str | None:
    """The rules of the gate that are not those of `params.yaml`, in words; None if all are."""
    entry = params_entry(workload)
    of_file, ours = validate(Gate, entry.tree.get("gate") or {}, entry.key), workload.gate
    changed = [
        f"gate.{name} {as_yaml(getattr(of_file, name))} -> {as_yaml(getattr(ours, name))}"
        for name in Gate.model_fields
        if getattr(of_file, name) != getattr(ours, name)
    ]
    return ", ".join(changed) or None


def _verdict(
    rules: Gate,
    scores: Artifact,
    champion: Opponent | None,
    reference: Opponent | None,
    against: Mapping[str, Opponent],
) -> tuple[str, list[Rule], bool]:
    """The verdict within the bounds, its rules, and whether the model becomes the reference."""
    if champion is None:
        return "first", [], True
    if champion.comparison is None:
        return ALREADY, [], False
    # The reference need not be surpassed, whatever is configured: else nothing could be promoted
    # after a rollback.
    no_worse = ("not worse", "better", *rules.promotes)
    passing = {"champion": rules.promotes, "reference": no_worse}
    becomes = _outcome(rules, scores, reference or champion) == "better"
    if is_same := champion.train_digest == scores.facts["train"]:
        # It takes the champion's place whatever the reference is, and need not be better.
        passing, becomes = {"champion": no_worse}, reference is None
    judged: list[Rule] = []
    for role in (role for role in against if role in passing):
        outcome = _outcome(rules, scores, against[role])
        judged += comparisons(rules, scores, role, against[role], passing[role])
        if outcome not in passing[role]:
            return outcome, judged, becomes
        if failures(judged):  # by one of `gate.no_worse`
            return "worse", judged, becomes
    verdict = _outcome(rules, scores, champion)
    return "repackaged" if is_same and verdict == "not worse" else verdict, judged, becomes


def _outcome(rules: Gate, scores: Artifact, opponent: Opponent) -> str:
    """The outcome of a comparison; of the same training, which is the same model, the plain one."""
    if opponent.comparison is None:  # the same package
        return "not worse"
    if opponent.comparison["groups"] < rules.min_compared:
        return "not comparable"
    facts = opponent.comparison["metrics"].get(rules.metric)
    if facts is None:  # of a class with too few images
        return "cannot tell"
    if opponent.train_digest == scores.facts["train"]:
        change = facts["challenger"] - facts["opponent"]
        gain = -change if rules.metric in LOWER_IS_BETTER else change
        return "not worse" if gain >= -rules.margin - ROUNDING else "worse"
    return str(facts["outcome"])


def bounds(
    rules: Gate, scores: Artifact, table: Sequence[Mapping[str, Any]], is_first: bool
) -> list[Rule]:
    """The bounds that every model has to reach or must not exceed.

    A bound is judged on at least `gate.min_compared` images: of its class, of its slice, or all.
    The first model, which is compared with no other, has to meet it on any number of images.

    Args:
        rules: The bounds.
        scores: The challenger's evaluation.
        table: The classes of the test split, as `tasks.data.metrics.outcomes` gives them.
        is_first: Whether there is no champion yet.

    Raises:
        ValueError: A bound is on a class or a slice that the test split lacks.
    """
    bound_rules = []
    for side, relation in BOUNDS.items():
        for name, bound in getattr(rules, side).items():
            judged, value, images = _measured(rules, scores, table, name)
            rule = make_rule(judged, relation, value, bound)
            if not is_first and images < rules.min_compared:
                words = f", not judged with {images} image{'' if images == 1 else 's'}"
                rule = make_rule(name, relation, value, bound, words) | {"passed": None}
            bound_rules.append(rule)
    return bound_rules


def _measured(
    rules: Gate, scores: Artifact, table: Sequence[Mapping[str, Any]], name: str
) -> tuple[str, float, int]:
    """A metric, also one of a class or of slices: its name, its value and how many images it has.

    Of several slices or classes it is the worst of those with enough images.
    """
    if column := parse_metric(name):
        slices = find_slices(scores.facts["slices"], *column)
        judged = [part for part in slices if part["images"] >= rules.min_compared]
        worst = min(judged or slices, key=lambda part: float(part["accuracy"]))
        return metric_of(worst), worst["accuracy"], max(part["images"] for part in slices)
    kind, label = split_name(name)
    if label is None and kind != "worst_class_recall":
        return name, scores.facts["metrics"][name], scores.facts["metrics"]["rows"]
    rows = [row for row in table if label in (None, row["label"])]
    if not rows:
        raise ValueError(f"gate: {name}: the test split has no class {label!r}.")
    column_name = kind if label is not None else "recall"
    enough = [row for row in rows if row["rows"] >= rules.min_compared]
    least = min(enough or rows, key=lambda row: float(row[column_name]))
    return name, float(least[column_name]), int(least["rows"])


def comparisons(
    rules: Gate, scores: Artifact, role: str, opponent: Opponent, allowed: tuple[str, ...]
) -> list[Rule]:
    """The rules of a comparison: one for the metric, and one for each of `gate.no_worse`.

    Args:
        rules: The metrics and the margin.
        scores: The challenger's evaluation.
        role: `champion` or `reference`.
        opponent: The model that was compared.
        allowed: The outcomes of the comparison that pass.
    """
    assert opponent.comparison is not None
    comparison_rules: list[Rule] = []
    for name, facts in opponent.comparison["metrics"].items():
        against = f"{role} {opponent.version}"
        relation, margin, allowed_loss = "not worse than", 0.0, None
        passed = facts["outcome"] != "worse"
        if name == rules.metric:
            margin = allowed_loss = rules.margin if "not worse" in allowed else 0.0
            passed = _outcome(rules, scores, opponent) in allowed
            relation = (
                f"at most {format_change(name, margin)} worse than" if margin else "better than"
            )
        sign = 1 if name in LOWER_IS_BETTER else -1
        comparison_rules.append(
            {
                "rule": f"{name} {relation} {against} ({facts['opponent']:.4f})",
                "value": facts["challenger"],
                "bound": facts["opponent"] + sign * margin,
                "passed": passed,
                "says": describe_comparison(name, against, facts, allowed_loss),
            }
        )
    return comparison_rules


def _sentences(rules: Gate, role: str, opponent: Opponent) -> Iterator[str]:
    """Describes what a comparison found, for a person.

    Args:
        rules: The metric and the margin.
        role: `champion` or `reference`.
        opponent: The model that was compared.
    """
    comparison = opponent.comparison
    assert comparison is not None
    name, images = f"the {role}, version {opponent.version}", comparison["images"]
    reasons = {
        "learnt": f"this model or {name}, was trained on them, or on images of their groups",
        "other_classes": f"this model or {name}, does not know their classes",
    }
    for kind, why in reasons.items():
        if count := comparison[kind]:
            yield f"{count:,} test image{' was' if count == 1 else 's were'} left out: {why}."
    whose = {"recorded": f"{name},", "start_recorded": "the model that this one started from"}
    for kind, model in whose.items():
        if not comparison[kind]:
            unknown = f"It is not known which images {model} was trained on"
            yield f"{unknown}; none were left out for that."
    groups = comparison["groups"]
    if groups < rules.min_compared:
        yield (
            f"Not comparable with {name}: {format_image_count(images, groups)} are left, and "
            f"gate.min_compared is {rules.min_compared}."
        )
        return
    if absent := comparison["absent"]:
        rest = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
        yield f"The compared images have none of the classes {', '.join(absent[:SHOWN])}{rest}."
    for metric in comparison["not_compared"]:
        yield (
            f"It cannot be told whether {metric} is worse than that of {name}: fewer than "
            f"{rules.min_compared} images, or groups of them (gate.min_compared)."
        )
    if found := comparison["metrics"].get(rules.metric):
        yield (
            f"{rules.metric.capitalize()} is {difference(rules.metric, found)} against {name}, on "
            f"{images:,} images, of which {found['gained']} only this model has right and "
            f"{found['lost']} only the other: {found['outcome']} at a level of {rules.level:g}."
        )
        if sentence := describe_margin(rules, comparison["units"], images, groups):
            yield sentence


def _baseline(table: Sequence[Mapping[str, Any]]) -> str:
    """Says what a model has to surpass to be of any use.

    Args:
        table: The classes, as `tasks.data.metrics.outcomes` gives them.
    """
    most = max(table, key=lambda row: int(row["rows"]))
    share = most["rows"] / sum(row["rows"] for row in table)
    return (
        f"To answer always {most['label']!r}, the most frequent class, gives an accuracy of "
        f"{share:.4f}."
    )


def _never_predicted(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names the classes of the test split that a model never predicts.

    Args:
        table: The classes, as `tasks.data.metrics.outcomes` gives them.
    """
    return [
        f"Class {row['label']!r} is never predicted; it has {row['rows']} test images."
        for row in table
        if row["rows"] and not row["predicted"]
    ]
