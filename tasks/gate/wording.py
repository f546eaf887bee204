"""Puts what the gate found into words: comparisons, and remarks on single classes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retrain.workload import Gate
from tasks.data.champion import Opponent
from tasks.data.rules import amount, difference
from tasks.gate.paired import fewest_images, images_needed

SHOWN = 10  # names in a sentence


def sentences(rules: Gate, role: str, opponent: Opponent) -> Iterator[str]:
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
        "learnt": f"this model or {name}, was trained on them",
        "other_classes": f"this model or {name}, does not know their classes",
    }
    for kind, why in reasons.items():
        if count := comparison[kind]:
            yield f"{count:,} test image{' was' if count == 1 else 's were'} left out: {why}."
    if not comparison["recorded"]:
        yield f"It is not known which images {name}, was trained on; none were left out for that."
    if images < rules.min_compared:
        yield (
            f"Not comparable with {name}: {images} test images are left, and gate.min_compared is "
            f"{rules.min_compared}."
        )
        return
    if absent := comparison["absent"]:
        rest = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
        yield f"The compared images have none of the classes {', '.join(absent[:SHOWN])}{rest}."
    for metric in comparison["not_compared"]:
        yield (
            f"It cannot be told whether {metric} is worse than that of {name}: fewer than "
            f"{rules.min_compared} images (gate.min_compared)."
        )
    if found := comparison["metrics"].get(rules.metric):
        yield (
            f"{rules.metric.capitalize()} is {difference(rules.metric, found)} against {name}, on "
            f"{images:,} images, of which {found['gained']} only this model has right and "
            f"{found['lost']} only the other: {found['outcome']} at a level of {rules.level:g}."
        )
        yield resolution(rules, comparison)


def resolution(rules: Gate, comparison: Mapping[str, Any]) -> str:
    """Which improvement the test images show, and how many the margin would need.

    Args:
        rules: The metric and the margin.
        comparison: What `tasks.gate.comparison.compare` returned, with that metric.
    """
    metric, images = rules.metric, comparison["images"]
    visible = comparison["metrics"][metric]["visible"]
    words = (
        f"With {images:,} test images, an improvement below {amount(metric, visible)}"
        f" cannot be seen"
    )
    if 0 < rules.margin < visible:
        words += (
            f"; the margin of {amount(metric, rules.margin)} needs about "
            f"{images_needed(images, visible, rules.margin):,}"
        )
    return f"{words}."


def too_few_images(rules: Gate, images: int, comparison: Mapping[str, Any] | None) -> str | None:
    """A sentence if a test split is too small to see a difference of the margin; else None.

    Args:
        rules: The metric and the margin.
        images: The number of test images.
        comparison: The last comparison with the champion; None if there was none.
    """
    metric, needed, how = rules.metric, 0, "about"
    if not rules.margin:
        return None
    if comparison and (found := comparison["metrics"].get(metric)):
        needed = images_needed(comparison["images"], found["visible"], rules.margin)
    elif metric == "accuracy":
        needed, how = fewest_images(rules.margin, rules.level), "at least"
    if images >= needed:
        return None
    return (
        f"{images:,} test images are too few to see a difference of {metric} as small as "
        f"gate.margin, {amount(metric, rules.margin)}: that needs {how} {needed:,}."
    )


def never_predicted(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names the classes of the test split that a model never predicts.

    Args:
        table: The classes, as `tasks.data.metrics.per_class` gives them.
    """
    return [
        f"Class {row['label']!r} is never predicted; it has {row['rows']} test images."
        for row in table
        if row["rows"] and not row["predicted"]
    ]
