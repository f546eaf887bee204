"""Puts the gate's comparisons, and its remarks on single classes, into sentences for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from retrain.workload import Gate
from tasks.data.champion import Opponent, Opponents
from tasks.gate.paired import fewest_images, images_needed

TOO_COARSE = 0.05  # an improvement that cannot be seen, of which a person is warned
SHOWN = 10  # names in a sentence
OUTCOMES = {
    "better": "better",
    "not worse": "not worse, except by less than the margin",
    "worse": "worse",
    "cannot tell": "it cannot be told which is better",
}


def sentences(rules: Gate, role: str, opponent: Opponent) -> list[str]:
    """Describes what a comparison found, for a person.

    Args:
        rules: The metric and the margin.
        role: `champion` or `reference`.
        opponent: The model that was compared.
    """
    comparison = opponent.comparison
    assert comparison is not None
    name = f"the {role}, version {opponent.version}"
    both, fewest = f"this model or {name},", f"{rules.min_compared}"
    lines = _left_out_as(comparison["learnt"], f"{both} was trained on them")
    if not comparison["recorded"]:
        lines.append(
            f"It is not known which of these images {name}, was trained on; none were left out."
        )
    lines += _left_out_as(
        comparison["other_classes"],
        f"{both} does not know their classes. The comparison is of the classes that both know",
    )
    if comparison["images"] < rules.min_compared:
        return [
            *lines,
            f"Not comparable with {name}: {comparison['images']} test images are left, and "
            f"gate.min_compared is {fewest}.",
        ]
    if absent := comparison["absent"]:
        rest = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
        lines.append(
            f"The compared images have none of {len(absent)} classes: "
            f"{', '.join(absent[:SHOWN])}{rest}."
        )
    lines += [
        f"It cannot be told whether {metric} is worse than that of {name}: fewer than {fewest} "
        "images (gate.min_compared)."
        for metric in comparison["not_compared"]
    ]
    if facts := comparison["metrics"].get(rules.metric):
        lines.append(_measured(comparison, rules.metric, name))
        if rules.metric == "accuracy":
            lines.append(
                f"{facts['gained']} images only this model has right, {facts['lost']} only version "
                f"{opponent.version}."
            )
        lines.append(resolution(rules, comparison))
    return lines


def resolution(rules: Gate, comparison: Mapping[str, Any]) -> str:
    """Which improvement the test images show, and how many the margin would need.

    Args:
        rules: The metric and the margin.
        comparison: What `tasks.gate.comparison.compare` returned, with that metric.
    """
    visible = comparison["metrics"][rules.metric]["visible"]
    points = rules.metric == "accuracy"
    words = (
        f"With {comparison['images']:,} test images, an improvement below "
        f"{_amount(visible, points)} cannot be seen"
    )
    if visible <= rules.margin:
        return f"{words}."
    if rules.margin:
        needed = images_needed(comparison["images"], visible, rules.margin)
        words += f"; the margin of {_amount(rules.margin, points)} needs about {needed:,}"
    if visible > TOO_COARSE:
        words = f"Warning: {words[0].lower()}{words[1:]}. Add test images"
    return f"{words}."


def too_few_images(rules: Gate, images: int, comparison: Mapping[str, Any] | None) -> str | None:
    """A sentence if a test split is too small to see a difference of the margin; else None.

    Args:
        rules: The metric and the margin.
        images: The number of test images.
        comparison: The last comparison with the champion; None if there was none.
    """
    if not rules.margin:
        return None
    points, needed, how = rules.metric == "accuracy", 0, "at least "
    if facts := comparison and comparison["metrics"].get(rules.metric):
        needed = images_needed(comparison["images"], facts["visible"], rules.margin)
        how = "about "
    elif points:
        needed = fewest_images(rules.margin, rules.level)
    if images >= needed:
        return None
    return (
        f"{images:,} test images are too few to see a difference of {rules.metric} as small as "
        f"gate.margin, {_amount(rules.margin, points)}: that needs {how}{needed:,}."
    )


def about_classes(table: Sequence[Mapping[str, Any]], opponents: Opponents) -> list[str]:
    """Describes the classes that a person should look at: new ones, and those never predicted.

    Args:
        table: The classes of the test split, as `tasks.data.metrics.per_class` gives them.
        opponents: The models that the challenger was compared with.
    """
    never = [
        f"Class {row['label']!r} is never predicted; it has {row['rows']} test images."
        for row in table
        if row["rows"] and not row["predicted"]
    ]
    return never + [
        f"Class {row['label']!r} is new: the champion does not know it. It has {row['rows']} test "
        f"images, and its recall is {row['recall']:.4f}."
        for row in new_classes(table, opponents)
    ]


def new_classes(table: Sequence[Mapping[str, Any]], opponents: Opponents) -> list[dict[str, Any]]:
    """The classes that the champion does not know: `label`, `rows` and `recall` of each.

    Args:
        table: The classes of the test split, as `tasks.data.metrics.per_class` gives them.
        opponents: The models that the challenger was compared with.
    """
    champion = opponents.champion
    new = champion.comparison["new_classes"] if champion and champion.comparison else ()
    return [
        {name: row[name] for name in ("label", "rows", "recall")}
        for row in table
        if row["label"] in new
    ]


def _left_out_as(count: int, why: str) -> list[str]:
    """The sentence about test images that were left out, if there are any.

    Args:
        count: How many were left out.
        why: The reason, as a clause.
    """
    if not count:
        return []
    return [f"{count:,} test image{' was' if count == 1 else 's were'} left out: {why}."]


def _measured(comparison: Mapping[str, Any], metric: str, against: str) -> str:
    """The difference between two models in a metric, and how surely it is known.

    Args:
        comparison: What `tasks.gate.comparison.compare` returned.
        metric: One of its metrics.
        against: The name of the opponent.
    """
    facts, points = comparison["metrics"][metric], metric == "accuracy"
    return (
        f"{metric.capitalize()} is {_amount(facts['difference'], points, sign=True)} against "
        f"{against}, on {comparison['images']:,} images: {OUTCOMES[facts['outcome']]}. The true "
        f"difference is between {_amount(facts['low'], points, sign=True)} and "
        f"{_amount(facts['high'], points, sign=True)} (wrong on either side in "
        f"{100 * comparison['level']:.2g} % of cases)."
    )


def _amount(value: float, points: bool, *, sign: bool = False) -> str:
    """A difference of accuracies in points, or of another metric as it is."""
    form = "+" if sign else ""
    return f"{100 * value:{form}.1f} points" if points else f"{value:{form}.4f}"
