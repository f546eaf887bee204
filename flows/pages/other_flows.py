"""The pages of the flows that train nothing or many: facts on top, and sections of parts.

Each is made from the document of its run; the images that `suspects` and `select` show are those
of the list for people. The template `run.html.j2` shows the parts: a text, a table, a picture or a
gallery.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.pages import pictures, run
from flows.pages.page import bar, point, ticks
from flows.pages.run import title_of
from retrain.project import Project
from retrain.runs.records import Document
from tasks.data import review_list
from tasks.data.metrics import SELECTIVE
from tasks.data.review_list import CONTRADICTION, OUTLIER, TO_LABEL
from tasks.suspects.step import COUNTS

MAX_SHOWN = 200  # pictures of a gallery
KINDS = {  # why an image is listed: the title of the gallery, and what it shows
    "wrong_labels": (
        "Labels that are probably wrong",
        "A classifier that has not seen the label of these images finds it so improbable that half "
        "of these labels or more should be wrong. The most improbable first.",
    ),
    "contradictions": (
        "Near-duplicates with different labels",
        "Each looks like another image that has another label.",
    ),
    "outliers": (
        "Outliers",
        "They are far from the images of every class. The farthest first.",
    ),
}
SELECTED = (
    "The model is unsure of them, they are new, and they differ from each other. The most useful "
    "first."
)


def content(project: Project, document: Document) -> dict[str, Any]:
    """What the page of a run shows; one that has failed has no sections of its own."""
    files = run.files_of(project, document)
    found: dict[str, Any] = {"verdict": run.failed_verdict(document)}
    if "error" not in document:
        found = FLOWS[document["flow"]](document, project.root)
    return found | run.content(project, document, files, found["verdict"])


def _predictions(document: Document, _: Path) -> dict[str, Any]:
    rows, errors = document["rows"], document["errors"]
    labels = sorted(document["labels"].items(), key=lambda item: -item[1])
    bars = [bar(label, count / max(1, rows), f"{count:,} images") for label, count in labels]
    sections = {"Answers": [{"title": "The share of each label", "bars": bars}]}
    if document["drift"]:
        sections["Drift"] = _parts_of_drift(document["drift"])
    look = ("!", "wait") if errors else ("✓", "good")
    return {
        "verdict": run.verdict("Predicted", document["outcome"], *look),
        "facts": {
            "Model": title_of(document["model"]),
            "Images": f"{rows:,}, {errors:,} of them not classified",
            "Input": document["input"],
            "Output": document["output"],
        },
        "parts": sections,
    }


def _drift(document: Document, _: Path) -> dict[str, Any]:
    found = document["drift"]
    name, *look = ("Drift", "!", "bad") if found["drifted"] else ("No drift", "✓", "good")
    return {
        "verdict": run.verdict(name, document["outcome"], *look),
        "facts": {"Model": title_of(document["model"]), "Input": document["input"]},
        "parts": {"Drift": _parts_of_drift(found)},
    }


def _parts_of_drift(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    threshold = found["threshold"]
    features = sorted(found["features"], key=lambda feature: -feature["score"])
    scores = [(feature["feature"], feature["score"]) for feature in features]
    names = ("feature", "reference", "incoming", "distance", "usual", "score")
    images = f"{found['images']:,} images against {found['reference_images']:,}"
    return [
        {
            "title": "The score of each feature",
            "bars": [bar(feature, score, f"score {score:.4f}") for feature, score in scores],
            "bounds": (0.0, 1.1 * max(threshold, *(score for _, score in scores))),
            "form": "{:.1f}",
            "lines": [(threshold, f"drift.threshold {threshold:g}", "bound")],
            "legend": "The dashed line is drift.threshold; chance alone seldom exceeds 1.",
        },
        {
            "title": f"{images} of {found['reference']}",
            "columns": ("feature", "reference", "incoming", "distance", "by chance", "score"),
            "rows": [[feature[name] for name in names] for feature in features],
        },
        {
            "title": "Labels",
            "columns": ("label", "reference", "incoming"),
            "rows": [
                (row["label"], f"{row['reference']:.1%}", f"{row['incoming']:.1%}")
                for row in found["labels"]
            ],
        },
    ]


def _production(document: Document, _: Path) -> dict[str, Any]:
    found = document["production"]
    looks = {None: ("No verdict", "=", "muted"), True: ("Worse", "✗", "bad")}
    name, *look = looks.get(found["worse"], ("As tested", "✓", "good"))
    weeks = ("week", "images", "labelled", "accuracy", *(of for of in SELECTIVE if of in found))
    classes = ("label", "labelled", "recall", "test_recall")
    unknown = f"The version does not know: {', '.join(found['unknown'])}."
    of_weeks = {
        "title": "The accuracy of each week",
        "bars": _measured(found["weeks"], "week", "accuracy"),
        "dots": True,
        "lines": [(found["test"], f"{found['test']:.1%} in the test", "bound")],
        "legend": "The dashed line is the accuracy in the test. Intervals are Wilson's, of 95 %.",
    }
    of_classes = {
        "title": "The recall of each class",
        "bars": _measured(found["classes"], "label", "recall"),
        "dots": True,
    }
    table_of_weeks = {
        "title": "By week of the answer, in UTC; an image that came several times counts once",
        "columns": weeks,
        "rows": [[row[of] for of in weeks] for row in found["weeks"]],
    }
    table_of_classes = {
        "title": "Those that lost most come first",
        "columns": ("class", "labelled", "recall", "in the test"),
        "rows": [[row[of] for of in classes] for row in found["classes"]],
    }
    return {
        "verdict": run.verdict(name, document["outcome"], *look),
        "facts": {
            "Model": title_of(document["model"]),
            "Images": f"{found['images']:,}, {found['labelled']:,} of them with a label",
            "Calibration error": found["calibration_error"],
        },
        "parts": {
            "Weeks": [of_weeks, table_of_weeks],
            "Classes": [of_classes, table_of_classes, {"text": found["unknown"] and unknown}],
        },
    }


def _measured(rows: Sequence[Mapping[str, Any]], label: str, value: str) -> list[dict[str, Any]]:
    """The rows that have a value, to be drawn with its interval."""
    return [
        bar(row[label], row[value], f"{row[value]:.1%}", row["low"], row["high"])
        for row in rows
        if row[value] is not None
    ]


def _search(document: Document, _: Path) -> dict[str, Any]:
    trials, metric, best = document["trials"], document["search"]["metric"], document["best"]
    done = sorted((row for row in trials if row["best"]), key=lambda row: int(row["trial"]))
    points = [
        point(
            row["trial"],
            row["best"][metric],
            f"trial {row['trial']}: {row['best'][metric]:.4g}",
            marked=row["trial"] == best["trial"],
        )
        for row in done
    ]
    picture = {
        "title": f"{metric} by trial",
        "curves": {metric: points},
        "labels": [(at, f"{at:g}") for at in ticks(points[0]["x"], points[-1]["x"], whole=True)],
        "mark": (best["trial"], f"trial {best['trial']}, the best"),
        "legend": "The vertical line is the best trial.",
    }
    table = {
        "title": "Trials, the best first",
        "columns": ("trial", "state", metric, *best["values"], "why it failed"),
        "rows": [
            [str(row["trial"]), row["state"], (row["best"] or {}).get(metric),
             *(_value(row["values"].get(name)) for name in best["values"]), row["reason"]]
            for row in trials
        ],
    }  # fmt: skip
    return {
        "verdict": run.verdict("Searched", document["outcome"], "✓", "good"),
        "commands": {"Trains with the best values": document["command"]},
        "parts": {"Trials": [picture, table] if len(points) > 1 else [table]},
    }


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _suspects(document: Document, root: Path) -> dict[str, Any]:
    facts, shown = document["suspects"], defaultdict[str, list[pictures.Picture]](list)
    pairs: dict[str, dict[str, Any]] = {}  # of near-duplicates, the first one that was listed
    for row in review_list.read(root, document["look"]["tasks"]):
        for kind in row["why"].split("; "):
            if kind == CONTRADICTION and row["look_alike"] not in pairs:
                pairs[row["path"]] = row
            elif len(shown[kind]) < MAX_SHOWN:
                both = [pairs[row["look_alike"]], row] if kind == CONTRADICTION else [row]
                shown[kind].append(_picture(*both))
    parts = {
        title: [{"text": meaning}, pictures.gallery(shown[COUNTS[kind]], facts[kind])]
        for kind, (title, meaning) in KINDS.items()
        if facts[kind]
    }
    style = "wait" if any(facts[kind] for kind in KINDS) else "good"
    return _how_to_correct(document) | {
        "verdict": run.verdict("Suspects", document["outcome"], "●", style),
        "facts": {"Images": facts["rows"], "Model": title_of(document["model"])},
        "parts": parts,
    }


def _selection(document: Document, root: Path) -> dict[str, Any]:
    rows = review_list.read(root, document["look"]["tasks"])
    shown = pictures.gallery(map(_picture, rows[:MAX_SHOWN]), document["chosen"])
    return _how_to_correct(document) | {
        "verdict": run.verdict("Selected", document["outcome"], "●", "good"),
        "facts": {"Input": document["input"], "Model": title_of(document["model"])},
        "parts": {"What to label next": [{"text": SELECTED}, shown]},
    }


def _how_to_correct(document: Document) -> dict[str, Any]:
    """Where the lists of images are, and what to do with them."""
    look, name = document["look"], document["workload"]
    meaning = "Takes over the labels that were put into the column `corrected`, or an export of "
    tasks = f"and as tasks for Label Studio in {look['tasks']}."
    return {
        "says": f"All of them are in {look['csv']}, {tasks}",
        "commands": {f"{meaning}Label Studio": f"retrain labels import {name} {look['csv']}"},
    }


def _picture(*rows: Mapping[str, Any]) -> pictures.Picture:
    """An image, or two that look alike, with what the model says of each."""
    lines: list[pictures.Line] = []
    for row in rows:
        label, proposed = row["label"], row["proposed"]
        lines.append((f"{label} → {proposed}", "bad") if label else (proposed, ""))
        split = f", {row['split']}" if row["split"] else ""
        lines.append((f"{row['confidence']:.0%} sure{split}", "muted"))
        if row["why"] in (OUTLIER, TO_LABEL):
            lines.append((f"{row['distance']:.1f} times the usual distance", "muted"))
        lines.append((row["path"], "path"))
    encoded = [row["image"].read_bytes() if row["image"].exists() else b"" for row in rows]
    names = (row["path"] for row in rows)
    return [*map(pictures.of_encoded, encoded, names)], lines


FLOWS = {
    "predict": _predictions,
    "drift": _drift,
    "production": _production,
    "tune": _search,
    "suspects": _suspects,
    "select": _selection,
}
