"""Writes the card of a model from what is known when it is registered.

The card is kept with the MLflow run of the training. It is not in the package, because the identity
of the package covers only what decides its answers. The registry and `retrain export` show the
card.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import models
from retrain.registry import packages
from retrain.runs import console
from retrain.runs.records import cell
from retrain.step import DataVersion
from retrain.store import Artifact
from tasks.data.metrics import CLASSES, METRICS, SELECTIVE, acceptance, wilson
from tasks.data.package import images_of
from tasks.promote.outcome import precision, slice_row

WORST = 5
FEW = 30  # test images; the interval of a recall is then wider than 0.2, unless it is near 0 or 1
NAMED = 20  # classes


def describe(
    name: str,
    data: DataVersion,
    validated: Mapping[str, Any],
    trained: Artifact,
    scores: Artifact,
    decision: Mapping[str, Any],
) -> str:
    """Describes a model (Markdown).

    Args:
        name: The name of the workload.
        data: The version of the data.
        validated: The facts of `validate`.
        trained: The output of `train`.
        scores: The output of `evaluate`.
        decision: The facts of `gate`.
    """
    table = json.loads((scores.folder / CLASSES).read_text(encoding="utf-8"))["classes"]
    tested = sorted((row for row in table if row["rows"]), key=lambda row: float(row["recall"]))
    model = trained.folder / "model"
    least, slices = scores.facts["min_confidence"], decision["slices"]
    return rendered(
        "card",
        name=name,
        labels=json.loads((model / models.LABELS).read_text(encoding="utf-8")),
        images=images_of(model),
        family=json.loads((model / models.MODEL).read_text(encoding="utf-8"))["family"],
        data=data,
        checked=validated,
        counts=sorted(validated["classes"].items(), key=lambda item: int(item[1])),
        scores=scores.facts,
        rows=sum(row["rows"] for row in table),
        accepts=None if least is None else acceptance(least),
        metrics=_metrics(scores.facts["metrics"], sum(row["rows"] for row in table)),
        worst=[row | {"interval": _interval(row["recall"], row["rows"])} for row in tested[:WORST]],
        slices=[slice_row(part) for part in slices],
        columns=["class", *dict.fromkeys(str(part["column"]) for part in slices)],
        rare=[f"{row['label']} ({row['rows']:,})" for row in table if row["rows"] < FEW],
        few=FEW,
        decision=decision,
        verdict=packages.VERDICTS.get(decision["verdict"], decision["verdict"]),
        trained=trained.facts,
        precision=precision(trained.facts) if "numerics" in trained.facts else None,
        commit=trained.provenance.get("commit"),
    )


def rendered(template: str, **content: Any) -> str:
    """The text (Markdown) of a template that lies beside this file, by its name."""
    from jinja2 import Environment

    environment = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {"cell": cell, "count": "{:,}".format, "listed": _list}
    environment.filters["number"] = console.number
    text = Path(__file__).with_name(f"{template}.md.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(content)


def _metrics(metrics: Mapping[str, float], rows: int) -> list[tuple[str, float, str]]:
    """The metrics: name, value, and the interval of those that are shares of images."""
    images = {"accuracy": rows, "coverage": rows}
    images["accepted_precision"] = round(metrics.get("coverage", 0) * rows)
    return [
        (name, metrics[name], _interval(metrics[name], images.get(name, 0)))
        for name in (*METRICS, *SELECTIVE)
        if name in metrics
    ]


def _interval(share: float, rows: int) -> str:
    """The interval of a share of images, by Wilson's method; empty for no images."""
    return "{:.3f} to {:.3f}".format(*wilson(round(share * rows), rows)) if rows else ""


def _list(names: Sequence[str]) -> str:
    hidden = len(names) - NAMED
    return ", ".join(map(cell, names[:NAMED])) + (f" and {hidden:,} more" if hidden > 0 else "")
