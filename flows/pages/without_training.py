"""The pages of runs that train nothing or many: checks, predictions, drift, search.

Each is made from the document of its run alone, but for the images of the checks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.pages import charts, data
from flows.pages.blocks import (
    Block,
    Command,
    Page,
    Section,
    Summary,
    Table,
    Verdict,
    cells,
)
from flows.pages.charts import Interval, Line, Point
from flows.pages.files import files_of
from flows.pages.training import failed_verdict, failure, gone, run_blocks
from retrain.messages import local_time
from retrain.project import Project
from retrain.runs import console
from retrain.runs.records import Document

MAX_ROWS = 60  # of a table


def checks(project: Project, document: Document) -> Page:
    """The page of a run of the flow `validate`."""
    files = files_of(project, document)
    sections = data.sections(project, document, files)
    verdict, top = Verdict("Passed", document["outcome"], "✓", "good"), list(gone(files))
    if "error" in document:
        verdict = failed_verdict(document)
        top += failure(project, document)
    sections.append(Section("Run", list(run_blocks(project, document, files))))
    return page_of_run(document, document["workload"], verdict, top, sections)


def failed(project: Project, document: Document) -> Page:
    """The page of a failed run of a flow without steps."""
    verdict, top = failed_verdict(document), failure(project, document)
    return page_of_run(document, document["workload"], verdict, top, [])


def predictions(project: Project, document: Document) -> Page:
    """The page of a run of the flow `predict`."""
    rows, errors = document["rows"], document["errors"]
    verdict = Verdict("Predicted", document["outcome"], "✓", "good")
    if errors:
        verdict = Verdict("Predicted", document["outcome"], "!", "wait")
    shares = {label: count / max(1, rows) for label, count in document["labels"].items()}
    labels = sorted(shares, key=lambda label: -shares[label])[:MAX_ROWS]
    drawn = [
        Interval(label, shares[label], None, None, f"{document['labels'][label]:,} images")
        for label in labels
    ]
    top = Summary(
        [
            ("Model", title_of(document["model"])),
            ("Images", f"{rows:,}, {errors:,} of them not classified"),
            ("Input", document["input"]),
            ("Output", document["output"]),
        ]
    )
    blocks: list[Block] = []
    if drawn:
        blocks.append(charts.intervals("The share of each label", drawn, (0.0, 1.0)))
    sections = [Section("Answers", blocks)]
    if document["drift"]:
        sections.append(Section("Drift", _drift(document["drift"])))
    return page_of_run(document, document["workload"], verdict, [top], sections)


def drift(project: Project, document: Document) -> Page:
    """The page of a run of the flow `drift`."""
    drifted = document["drift"]["drifted"]
    verdict = Verdict("No drift", document["outcome"], "✓", "good")
    if drifted:
        verdict = Verdict("Drift", document["outcome"], "!", "bad")
    top = Summary([("Model", title_of(document["model"])), ("Input", document["input"])])
    sections = [Section("Drift", _drift(document["drift"]))]
    return page_of_run(document, document["workload"], verdict, [top], sections)


def _drift(found: Mapping[str, Any]) -> list[Block]:
    features = sorted(found["features"], key=lambda feature: -(feature["score"] or 0.0))
    highest = max(found["threshold"], *(feature["score"] or 0.0 for feature in features))
    drawn = [
        Interval(
            feature["feature"], feature["score"] or 0.0, None, None,
            f"score {console.number(feature['score'])}",
        )
        for feature in features
    ]  # fmt: skip
    line = Line(found["threshold"], f"drift.threshold {found['threshold']:g}", "bound")
    legend = "The dashed line is drift.threshold; chance alone seldom exceeds 1."
    columns = ("feature", "reference", "incoming", "distance", "by chance", "score")
    names = ("reference", "incoming", "distance", "usual", "score")
    rows = [
        cells(feature["feature"], *(console.number(feature[name]) for name in names))
        for feature in features
    ]
    shares = [
        cells(row["label"], f"{row['reference']:.1%}", f"{row['incoming']:.1%}")
        for row in found["labels"][:MAX_ROWS]
    ]
    caption = (
        f"{found['images']:,} images against {found['reference_images']:,} of {found['reference']}"
    )
    return [
        charts.intervals(
            "The score of each feature", drawn, (0.0, 1.1 * highest), ".1f", [line], legend
        ),
        Table(caption, rows, columns, frozenset(range(1, 6))),
        Table("Labels", shares, ("label", "reference", "incoming"), frozenset({1, 2})),
    ]


def search(project: Project, document: Document) -> Page:
    """The page of a run of the flow `tune`, which may have failed."""
    trials, facts = document["trials"] or [], document["search"]
    if document["best"] is None:
        verdict = Verdict("Failed", "The search has no complete trial.", "✗", "bad")
        top = failure(project, document) if "error" in document else []
        run = Section("Run", list(run_blocks(project, document, files_of(project, document))))
        return page_of_run(document, document["workload"], verdict, top, [run])
    metric = facts["metric"]
    verdict = Verdict("Searched", document["outcome"], "✓", "good")
    values = list(document["best"]["values"])
    rows = [
        cells(row["trial"], row["state"], console.number((row["best"] or {}).get(metric)),
              *(_value(row["values"].get(name)) for name in values), row["reason"] or "")
        for row in trials[:MAX_ROWS]
    ]  # fmt: skip
    columns = ("trial", "state", metric, *values, "why it failed")
    numbers = frozenset(range(2, 3 + len(values)))
    command = Command("Trains with the best values", document["command"])
    done = sorted((row for row in trials if row["best"]), key=lambda row: int(row["trial"]))
    blocks: list[Block] = [command]
    if len(done) > 1:
        blocks.append(_trials(done, metric, document["best"]["trial"]))
    blocks.append(Table("Trials, the best first", rows, columns, numbers))
    return page_of_run(document, document["workload"], verdict, [], [Section("Trials", blocks)])


def _trials(trials: Sequence[Mapping[str, Any]], metric: str, best: int) -> Block:
    points = [
        Point(row["trial"], row["best"][metric], f"trial {row['trial']}: {row['best'][metric]:.4g}",
              marked=row["trial"] == best)
        for row in trials
    ]  # fmt: skip
    places = charts.ticks(points[0].x, points[-1].x, whole=True)
    labels = [(place, f"{place:g}") for place in places]
    mark = Line(best, f"trial {best}, the best", "zero")
    legend = "The vertical line is the best trial."
    return charts.curves(f"{metric} by trial", [(metric, points)], labels, mark, legend)


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def title_of(model: Mapping[str, Any]) -> str:
    """A version, as a document has it, for people."""
    return f"{model['name']} version {model['version']}"


def page_of_run(
    document: Document,
    name: str,
    verdict: Verdict,
    top: Sequence[Block],
    sections: Sequence[Section],
) -> Page:
    """A page with what the pages of all runs have in common."""
    origin = f"{name} · {document['flow']} · run {document['run'][:8]}"
    return Page(
        title=f"{name}: {verdict.name}",
        origin=f"{origin} · {local_time(document['time'])}",
        verdict=verdict,
        top=top,
        sections=sections,
    )
