"""Writes the card of a model from what is known when it is registered.

The card is kept with the MLflow run of the training. It is not in the package, because the identity
of the package covers only what decides its answers. The registry and `retrain export` show the
card.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import models
from retrain import tracking
from retrain.project import Project
from retrain.registry import model_card
from retrain.runs import console
from retrain.runs.records import cell
from retrain.step import DataVersion
from retrain.store import Artifact
from tasks.data.metrics import METRICS, SELECTIVE, acceptance, wilson
from tasks.data.package import images_of
from tasks.data.splits import SPLITS
from tasks.promote.outcome import slice_row

WORST = 5
Facts = Mapping[str, Any]
Rows = Sequence[Facts]
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
    table = json.loads((scores.folder / "per_class.json").read_text(encoding="utf-8"))
    slices, verdict = decision["slices"], decision["verdict"]
    sections: dict[str, Iterable[str]] = {
        f"# {name}": [_what(trained)],
        "## Data": _data(data, validated),
        "## Results on the test split": _results(scores.facts, table, slices),
        "## Decision of the gate": [
            f"The gate says: {model_card.VERDICTS.get(verdict, verdict)}.",
            *decision["says"],
        ],
        "## Training": _training(trained, scores.facts),
        "## Limits": _limits(scores.facts, table, slices),
    }
    parts = ["\n".join([title, "", *lines]) for title, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def keep(project: Project, run_id: str, package_digest: str, text: str) -> None:
    """Keeps a card with the MLflow run of the training."""
    tracking.client(project).log_text(run_id, text, model_card.place(package_digest))


def _what(trained: Artifact) -> str:
    model = trained.folder / "model"
    labels = json.loads((model / models.LABELS).read_text(encoding="utf-8"))
    images = images_of(model)
    colours = "grey" if images["channels"] == 1 else "RGB"
    return (
        f"An image classifier with {len(labels):,} classes: {_list(labels)}. It takes images of "
        f"{images['size']} x {images['size']} pixels, {colours} (resize {images['resize']}, "
        f"{images['resampling']})."
    )


def _data(version: DataVersion, facts: Mapping[str, Any]) -> Iterator[str]:
    counts = facts["classes"]
    rows = ", ".join(f"{facts['rows'][split]:,} {split}" for split in SPLITS)
    yield f"Version `{version.digest}`: {rows} images. {facts['quarantined']:,} were set aside."
    smallest, largest = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    yield (
        f"The classes have from {counts[smallest]:,} images ({cell(smallest)}) to "
        f"{counts[largest]:,} ({cell(largest)})."
    )
    if near := facts["near_duplicates"]:
        yield f"{near:,} images look almost like one of a later split."


def _results(facts: Facts, table: Rows, slices: Rows) -> Iterator[str]:
    rows, metrics = sum(row["rows"] for row in table), facts["metrics"]
    yield f"{rows:,} images that the model was not trained on. It answers in {facts['precision']}."
    intervals = {"accuracy": _interval(metrics["accuracy"], rows)}
    if (least := facts["min_confidence"]) is not None:
        yield f"It {acceptance(least)}."
        intervals["coverage"] = _interval(metrics["coverage"], rows)
        if accepted := round(metrics["coverage"] * rows):
            precision = metrics["accepted_precision"]
            intervals["accepted_precision"] = _interval(precision, accepted)
    yield from _table(
        ("metric", "value", "95 % interval"),
        [
            (metric, console.number(metrics[metric]), intervals.get(metric, ""))
            for metric in (*METRICS, *SELECTIVE)
            if metric in metrics
        ],
    )
    yield "The classes with the lowest recall:"
    measured = sorted((row for row in table if row["rows"]), key=lambda row: float(row["recall"]))
    yield from _table(
        ("class", "test images", "recall", "95 % interval", "precision"),
        [
            (
                row["label"],
                f"{row['rows']:,}",
                f"{row['recall']:.4f}",
                _interval(row["recall"], row["rows"]),
                f"{row['precision']:.4f}",
            )
            for row in measured[:WORST]
        ],
    )
    if slices:
        columns = ("images by column and value", "test images", "accuracy", "95 % interval")
        yield from _table(columns, [slice_row(part) for part in slices])
    yield "The intervals are Wilson's (1927), of shares of images."


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown, between empty lines."""
    yield ""
    for row in (columns, ["---"] * len(columns), *rows):
        yield f"| {' | '.join(map(cell, row))} |"
    yield ""


def _training(trained: Artifact, scores: Facts) -> Iterator[str]:
    facts = trained.facts
    model = json.loads((trained.folder / "model" / models.MODEL).read_text(encoding="utf-8"))
    details = [f"Family {model['family']}"]
    if "parameters" in facts:
        details += [f"{facts['parameters']:,} parameters", f"best epoch {facts['best_epoch']}"]
        details += [f"batches of {facts['batch_size']:,}", _precision(facts["numerics"])]
    if start := facts.get("start"):
        details.append(f"starting from the weights `{start[:8]}` of an earlier version")
    yield f"{', '.join(details)}."
    yield f"Commit `{trained.provenance.get('commit') or 'unknown'}`, weights `{facts['weights']}`."
    yield f"Package `{scores['package']}`, {scores['package_bytes'] / 1e6:.4g} MB without code."


def _precision(numerics: Facts) -> str:
    """How the network was trained; a function of the user's may ignore the setting."""
    if precision := numerics.get("told_precision"):
        return f"by a function that was told to train in {precision}"
    return f"trained in {numerics['precision']}"


def _limits(facts: Facts, table: Rows, slices: Rows) -> Iterator[str]:
    yield "- It gives every image one of these classes, also an image that shows something else."
    columns = dict.fromkeys(str(part["column"]) for part in slices)
    by = f"by {_list(['class', *columns])}" if slices else "by class only"
    yield (
        f"- The results hold for images like those of this data. They were measured {by}, and by "
        "nothing else, such as place or time."
    )
    rare = [f"{row['label']} ({row['rows']:,})" for row in table if row["rows"] < FEW]
    if rare:
        yield (
            f"- Classes with fewer than {FEW} test images: {_list(rare)}. Of these little is known."
        )
    if facts["precision"] != "fp32":
        yield f"- In {facts['precision']}, a probability differs from that in fp32 by up to 0.02."


def _interval(share: float, rows: int) -> str:
    """The interval of a share of images, by Wilson's method."""
    low, high = wilson(round(share * rows), rows)
    return f"{low:.3f} to {high:.3f}"


def _list(names: Sequence[str]) -> str:
    hidden = len(names) - NAMED
    return ", ".join(map(cell, names[:NAMED])) + (f" and {hidden:,} more" if hidden > 0 else "")
