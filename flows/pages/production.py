"""The page of a run of the flow `production`."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.pages import charts
from flows.pages.blocks import Block, Page, Section, Summary, Table, Text, Verdict, cells
from flows.pages.charts import Interval, Line
from flows.pages.without_training import MAX_ROWS, page_of_run, title_of
from retrain.project import Project
from retrain.runs import console
from retrain.runs.records import Document
from tasks.data.metrics import SELECTIVE

COLUMNS = ("class", "labelled", "recall", "in the test")


def page_of(project: Project, document: Document) -> Page:
    """The page of a run of the flow `production`."""
    found, outcome = document["production"], document["outcome"]
    if found["worse"] is None:
        verdict = Verdict("No verdict", outcome, "=", "muted")
    elif found["worse"]:
        verdict = Verdict("Worse", outcome, "✗", "bad")
    else:
        verdict = Verdict("As tested", outcome, "✓", "good")
    facts = [
        ("Model", title_of(document["model"])),
        ("Images", f"{found['images']:,}, {found['labelled']:,} of them with a label"),
    ]
    if found["calibration_error"] is not None:
        facts.append(("Calibration error", console.number(found["calibration_error"])))
    sections = [Section("Weeks", list(_weeks(found))), Section("Classes", list(_classes(found)))]
    return page_of_run(document, document["workload"], verdict, [Summary(facts)], sections)


def _weeks(found: Mapping[str, Any]) -> list[Block]:
    line = Line(found["test"], f"{found['test']:.1%} in the test", "bound")
    measured = ["accuracy", *(name for name in SELECTIVE if name in found)]
    legend = "The dashed line is the accuracy in the test. Intervals are Wilson's, of 95 %."
    return [
        _intervals("The accuracy of each week", found["weeks"], "week", "accuracy", [line], legend),
        Table(
            "By week of the answer, in UTC; an image that came several times counts once",
            [
                cells(row["week"], f"{row['images']:,}", f"{row['labelled']:,}",
                      *(console.number(row[name]) for name in measured))
                for row in found["weeks"]
            ],
            ("week", "images", "labelled", *measured),
            frozenset(range(1, 3 + len(measured))),
        ),
    ]  # fmt: skip


def _classes(found: Mapping[str, Any]) -> list[Block]:
    shown = found["classes"][:MAX_ROWS]
    rows = [
        cells(row["label"], f"{row['labelled']:,}", console.number(row["recall"]),
              console.number(row["test_recall"]))
        for row in shown
    ]  # fmt: skip
    blocks: list[Block] = [
        _intervals("The recall of each class", shown, "label", "recall", [], ""),
        Table("Those that lost most come first", rows, COLUMNS, frozenset({1, 2, 3})),
    ]
    if found["unknown"]:
        blocks.append(Text(f"The version does not know: {', '.join(found['unknown'])}."))
    return blocks


def _intervals(
    description: str,
    rows: Sequence[Mapping[str, Any]],
    label: str,
    value: str,
    lines: Sequence[Line],
    legend: str,
) -> Block:
    drawn = [
        Interval(row[label], row[value], row["low"], row["high"], f"{row[value]:.1%}")
        for row in rows
        if row[value] is not None
    ]
    return charts.intervals(description, drawn, (0.0, 1.0), lines=lines, legend=legend, dots=True)
