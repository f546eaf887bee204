"""The page of a training, and of the checks of data: the document of the run, and its files."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.pages import answers, data, run
from flows.pages.page import bar, point, ticks
from flows.pages.run import Files, files_of
from retrain.project import Project
from retrain.runs import console
from retrain.runs.records import Document
from retrain.step import REPORT
from tasks.data.metrics import wilson
from tasks.promote import outcome

LOOKS = {"Promoted": ("✓", "good"), "Rejected": ("✗", "bad"), "Waiting": ("…", "wait")}
CURVES = {
    "Loss": ("train_loss", "val_loss"),
    "Accuracy": ("train_accuracy", "val_accuracy"),
    "Learning rate": ("lr",),
    "Images per second": ("images_per_second",),
}


def content(project: Project, document: Document) -> dict[str, Any]:
    """What the page of a run of `train` or `validate` shows; it may have failed at any step.

    Args:
        project: The clone.
        document: As `flows.reports.training` makes it.
    """
    files = files_of(project, document)
    is_decided = bool(document.get("decision") and document.get("model"))
    rows = differences(document["decision"]) if is_decided else []
    can_compare = files.has("evaluate", "evaluate_champion", "preprocess")
    return run.content(project, document, files, _verdict(document)) | {
        "served": _served(document) if document["flow"] == "train" else None,
        "is_decided": is_decided,
        "alone": _interval(document),
        "differences": rows,
        "margin": _margin(files) if rows else 0.0,
        "rules": outcome.rules(document) if is_decided else (),
        "slices": [*_slices((document.get("decision") or {}).get("slices") or ())],
        "classes": [*_classes(files)] if files.has("evaluate") else (),
        "disagreements": answers.disagreements(files) if can_compare else {},
        "data": data.content(project, document, files),
        "training": _training(files) if files.has("train") else None,
        "answers": answers.content(files) if files.has("evaluate", "preprocess") else None,
    }


def _interval(document: Document) -> tuple[float, float] | None:
    """The 95 % interval of the accuracy of a model without a champion beside it."""
    metrics = document.get("metrics")
    if not metrics or document.get("champion"):
        return None
    images = int(metrics["rows"])
    return wilson(round(metrics["accuracy"] * images), images)


def _verdict(document: Document) -> dict[str, str]:
    if "error" in document:
        return run.failed_verdict(document)
    if document["flow"] == "validate":
        return run.verdict("Passed", document["outcome"], "✓", "good")
    state = outcome.verdict(document).state
    return run.verdict(state, document["outcome"], *LOOKS.get(state, ("=", "muted")))


def _served(document: Document) -> str:
    """What is served after the run; a run that failed has not changed it."""
    if document["promoted"]:
        return f"version {document['model']['version']}, this model"
    if champion := document["champion"]:
        return f"version {champion['version']}"
    return "what was before" if "error" in document else "nothing"


def differences(decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The differences that decide, with their intervals."""
    return [
        bar(
            f"{metric} against {opponent} {found['version']}",
            values["difference"],
            "{difference:+.4f} ({low:+.4f} to {high:+.4f})".format(**values),
            values["low"],
            values["high"],
        )
        for opponent, found in decision["comparisons"].items()
        for metric, values in found["metrics"].items()
    ]


def _margin(files: Files) -> float:
    """By how much a model may seem worse than the champion."""
    if not files.has("compare_champion"):
        return 0.0
    return float(files.manifest("compare_champion")["plan"]["config"]["gate.margin"])


def _slices(slices: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in sorted(slices, key=lambda row: float(row["accuracy"])):
        name, images, accuracy, interval = outcome.slice_row(row)
        text = f"{accuracy} ({interval}) of {images} images"
        yield bar(name, row["accuracy"], text, row["low"], row["high"])


def _classes(files: Files) -> Iterator[dict[str, Any]]:
    """The recall of the classes, the worst first, with intervals."""
    classes = files.json("evaluate", "classes.json")["classes"]
    for row in sorted(classes, key=lambda row: float(row["recall"])):
        images = row["rows"]
        ends = wilson(round(row["recall"] * images), images) if images else (None, None)
        yield bar(row["label"], row["recall"], f"{row['recall']:.1%} of {images:,} images", *ends)


def _training(files: Files) -> dict[str, Any]:
    history = files.json("train", f"{REPORT}/history.json")
    facts = files.manifest("train")["facts"]
    kept, epochs = facts["best_epoch"], [row["epoch"] for row in history]
    columns = list(dict.fromkeys(name for row in history for name in row))
    pictures = {}
    for title, names in CURVES.items():
        lines = {name: points for name in names if (points := _points(history, name, kept))}
        if lines:
            pictures[title] = lines
    return {
        "facts": facts,
        "precision": outcome.precision(facts),
        "kept": kept,
        "labels": [(at, f"{at:g}") for at in ticks(epochs[0], epochs[-1], whole=True)],
        "curves": pictures,
        "columns": columns,
        "history": [[row.get(name) for name in columns] for row in history],
    }


def _points(history: Sequence[Mapping[str, Any]], name: str, kept: int) -> list[dict[str, Any]]:
    """The values of a metric by epoch; that of the epoch whose weights were kept is marked."""
    return [
        point(
            row["epoch"],
            row[name],
            f"epoch {row['epoch']}: {name} {console.number(row[name])}",
            marked=row["epoch"] == kept,
        )
        for row in history
        if row.get(name) is not None
    ]
