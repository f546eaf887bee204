"""The pages of the flows that train nothing or many: facts on top, and sections of parts.

Each is made from the document of its run; the images that `suspects` and `select` list are in files.
A part is a mapping that the template `run.html.j2` knows: a text, a table, a picture or a gallery.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from flows.pages import pictures, run
from flows.pages.files import files_of
from flows.pages.page import bar, point, ticks
from flows.pages.run import title_of
from retrain.project import Project
from retrain.runs import console
from retrain.runs.records import Document
from retrain.store import Store
from tasks.data import listed
from tasks.data.listed import CONTRADICTION, OUTLIER, TO_LABEL
from tasks.data.metrics import SELECTIVE
from tasks.suspects.step import COUNTS

Part = dict[str, Any]

MAX_ROWS = 60  # of a table
MAX_SHOWN = 200  # pictures of a gallery
STEP = "find_suspects"
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
    files = files_of(project, document)
    found = _page(run.failed_verdict(document))
    if "error" not in document:
        folder = files.folders.get(STEP, Store.of(project).runs.temporary(document["run"]))
        found = FLOWS[document["flow"]](document, folder)
    return found | run.content(project, document, files, found["verdict"])


def _page(
    verdict: Mapping[str, str],
    facts: Mapping[str, Any] | None = None,
    sections: Mapping[str, Sequence[Part]] | None = None,
    commands: Mapping[str, str] | None = None,
    says: Sequence[str] = (),
) -> dict[str, Any]:
    """What a flow adds to a page."""
    shown = {"facts": facts or {}, "parts_by_section": sections or {}, "commands": commands or {}}
    return shown | {"verdict": verdict, "says": says}


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Part:
    return {"title": title, "columns": columns, "rows": [*islice(rows, MAX_ROWS)]}


def _predictions(document: Document, folder: Path) -> dict[str, Any]:
    rows, errors = document["rows"], document["errors"]
    labels = sorted(document["labels"].items(), key=lambda item: -item[1])[:MAX_ROWS]
    bars = [bar(label, count / max(1, rows), f"{count:,} images") for label, count in labels]
    sections = {"Answers": [{"title": "The share of each label", "bars": bars}]}
    if document["drift"]:
        sections["Drift"] = _parts_of_drift(document["drift"])
    facts = {
        "Model": title_of(document["model"]),
        "Images": f"{rows:,}, {errors:,} of them not classified",
        "Input": document["input"],
        "Output": document["output"],
    }
    look = ("!", "wait") if errors else ("✓", "good")
    return _page(run.verdict("Predicted", document["outcome"], *look), facts, sections)


def _drift(document: Document, folder: Path) -> dict[str, Any]:
    look = ("Drift", "!", "bad") if document["drift"]["drifted"] else ("No drift", "✓", "good")
    facts = {"Model": title_of(document["model"]), "Input": document["input"]}
    verdict = run.verdict(look[0], document["outcome"], *look[1:])
    return _page(verdict, facts, {"Drift": _parts_of_drift(document["drift"])})


def _parts_of_drift(found: Mapping[str, Any]) -> list[Part]:
    threshold = found["threshold"]
    features = sorted(found["features"], key=lambda feature: -(feature["score"] or 0.0))
    scores = [(feature["feature"], feature["score"]) for feature in features]
    names = ("feature", "reference", "incoming", "distance", "usual", "score")
    return [
        {
            "title": "The score of each feature",
            "bars": [bar(of, score or 0.0, f"score {console.number(score)}") for of, score in scores],
            "bounds": (0.0, 1.1 * max(threshold, *(score or 0.0 for _, score in scores))),
            "form": "{:.1f}",
            "lines": [(threshold, f"drift.threshold {threshold:g}", "bound")],
            "legend": "The dashed line is drift.threshold; chance alone seldom exceeds 1.",
        },
        _table(
            f"{found['images']:,} images against {found['reference_images']:,} of "
            f"{found['reference']}; the usual distance is that by chance",
            names,
            ([feature[name] for name in names] for feature in features),
        ),
        _table(
            "Labels",
            ("label", "reference", "incoming"),
            ((row["label"], f"{row['reference']:.1%}", f"{row['incoming']:.1%}")
             for row in found["labels"]),
        ),
    ]  # fmt: skip


def _production(document: Document, folder: Path) -> dict[str, Any]:
    found = document["production"]
    looks = {None: ("No verdict", "=", "muted"), True: ("Worse", "✗", "bad")}
    name, *look = looks.get(found["worse"], ("As tested", "✓", "good"))
    weeks = ("week", "images", "labelled", "accuracy", *(n for n in SELECTIVE if n in found))
    classes = ("label", "labelled", "recall", "test_recall")
    facts = {
        "Model": title_of(document["model"]),
        "Images": f"{found['images']:,}, {found['labelled']:,} of them with a label",
        "Calibration error": console.number(found["calibration_error"]),
    }
    sections: dict[str, list[Part]] = {
        "Weeks": [
            _measured("The accuracy of each week", found["weeks"], "week", "accuracy") | {
                "lines": [(found["test"], f"{found['test']:.1%} in the test", "bound")],
                "legend": "The dashed line is the accuracy in the test. Intervals are Wilson's, of "
                "95 %.",
            },
            _table(
                "By week of the answer, in UTC; an image that came several times counts once",
                weeks,
                ([row[name] for name in weeks] for row in found["weeks"]),
            ),
        ],
        "Classes": [
            _measured("The recall of each class", found["classes"], "label", "recall"),
            _table(
                "Those that lost most come first",
                ("class", "labelled", "recall", "in the test"),
                ([row[name] for name in classes] for row in found["classes"]),
            ),
        ],
    }  # fmt: skip
    if found["unknown"]:
        unknown = f"The version does not know: {', '.join(found['unknown'])}."
        sections["Classes"].append({"text": unknown})
    return _page(run.verdict(name, document["outcome"], *look), facts, sections)


def _measured(title: str, rows: Sequence[Mapping[str, Any]], label: str, value: str) -> Part:
    """Dots with intervals, of the first rows that have a value."""
    bars = [
        bar(row[label], row[value], f"{row[value]:.1%}", row["low"], row["high"])
        for row in rows[:MAX_ROWS]
        if row[value] is not None
    ]
    return {"title": title, "bars": bars, "dots": True}


def _search(document: Document, folder: Path) -> dict[str, Any]:
    trials, metric, best = document["trials"], document["search"]["metric"], document["best"]
    values = list(best["values"])
    done = sorted((row for row in trials if row["best"]), key=lambda row: int(row["trial"]))
    scores = [(row["trial"], row["best"][metric]) for row in done]
    points = [
        point(trial, score, f"trial {trial}: {score:.4g}", marked=trial == best["trial"])
        for trial, score in scores
    ]
    rows = (
        [str(row["trial"]), row["state"], (row["best"] or {}).get(metric),
         *(_value(row["values"].get(name)) for name in values), row["reason"]]
        for row in trials
    )  # fmt: skip
    parts = [
        _table("Trials, the best first", ("trial", "state", metric, *values, "why it failed"), rows)
    ]
    if len(points) > 1:
        picture = {
            "title": f"{metric} by trial",
            "curves": {metric: points},
            "labels": [(at, f"{at:g}") for at in ticks(scores[0][0], scores[-1][0], whole=True)],
            "mark": (best["trial"], f"trial {best['trial']}, the best"),
            "legend": "The vertical line is the best trial.",
        }
        parts.insert(0, picture)
    commands = {"Trains with the best values": document["command"]}
    verdict = run.verdict("Searched", document["outcome"], "✓", "good")
    return _page(verdict, sections={"Trials": parts}, commands=commands)


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _suspects(document: Document, folder: Path) -> dict[str, Any]:
    facts, shown = document["suspects"], defaultdict[str, list[pictures.Picture]](list)
    pairs: dict[str, dict[str, Any]] = {}  # of near-duplicates, the first one that was listed
    for row in listed.read(folder) if folder.is_dir() else ():
        for kind in row["why"].split("; "):
            if kind == CONTRADICTION and row["look_alike"] not in pairs:
                pairs[row["path"]] = row
            elif len(shown[kind]) < MAX_SHOWN:
                both = [pairs[row["look_alike"]], row] if kind == CONTRADICTION else [row]
                shown[kind].append(_picture(*both))
    sections: dict[str, list[Part]] = {
        title: [{"text": meaning}, pictures.gallery(shown[COUNTS[kind]], facts[kind])]
        for kind, (title, meaning) in KINDS.items()
        if facts[kind] and folder.is_dir()
    }
    style = "wait" if any(facts[kind] for kind in KINDS) else "good"
    verdict = run.verdict("Suspects", document["outcome"], "●", style)
    top = {"Images": f"{facts['rows']:,}", "Model": title_of(document["model"])}
    return _page(verdict, top, sections, *_how_to_correct(document))


def _selection(document: Document, folder: Path) -> dict[str, Any]:
    shown = pictures.gallery(
        map(_picture, islice(listed.read(folder), MAX_SHOWN)), document["chosen"]
    )
    verdict = run.verdict("Selected", document["outcome"], "●", "good")
    facts = {"Input": document["input"], "Model": title_of(document["model"])}
    sections = {"What to label next": [{"text": SELECTED}, shown]}
    return _page(verdict, facts, sections, *_how_to_correct(document))


def _how_to_correct(document: Document) -> tuple[dict[str, str], list[str]]:
    """The commands for the lists of images, and where these are."""
    look, name = document["look"], document["workload"]
    meaning = "Takes over the labels that were put into the column `corrected`, or an export of "
    commands = {f"{meaning}Label Studio": f"retrain labels import {name} {look['csv']}"}
    tasks = f"and as tasks for Label Studio in {look['tasks']}."
    return commands, [f"All of them are in {look['csv']}, {tasks}"]


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
    return [pictures.of_encoded(row["image"], row["path"]) for row in rows], lines


FLOWS: Mapping[str, Callable[[Document, Path], dict[str, Any]]] = {
    "predict": _predictions,
    "drift": _drift,
    "production": _production,
    "tune": _search,
    "suspects": _suspects,
    "select": _selection,
}
