"""The page of a workload's history: its champions over time, and every decision."""

from collections.abc import Sequence
from datetime import datetime

from flows.pages import charts
from flows.pages.blocks import Block, Cell, Facts, Page, Section, Table, Text, Verdict, cells
from flows.pages.charts import Point
from flows.pages.page import folder_of, local_time
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Entry
from retrain.registry.versions import ModelVersion

STYLES = {"promoted": "good", "rejected": "bad", "waiting": "wait", "rolled back": "wait"}
DAYS_OF_A_LABEL = 6  # labels on the axis of time


def page_of(project: Project, name: str) -> Page:
    """The page of a workload, newest decisions first.

    Args:
        project: The clone.
        name: Of the workload.
    """
    entries = decisions.read(project, name).entries
    numbers = {entry.version for entry in entries}
    found = {number: versions.get(project, name, number) for number in numbers}
    known = {number: version for number, version in found.items() if version}
    champion = versions.champion(project, name)
    sentence = f"{name} has no champion."
    if champion:
        sentence = f"{name} version {champion.version} is the champion."
    champions = [entry for entry in entries if entry.appoints and entry.version in known]
    blocks: list[Block] = [
        Facts(
            [f"{len(entries)} decisions", f"{len(known)} versions", f"{len(champions)} promotions"]
        )
    ]
    if len(champions) > 1:
        blocks.append(_timeline(champions, known))
    rows = [_row(project, name, entry, known.get(entry.version)) for entry in reversed(entries)]
    columns = ("time", "decision", "version", "accuracy", "verdict", "by", "reason")
    return Page(
        title=f"{name}: history",
        origin=name,
        verdict=Verdict("History", sentence, "●", "good" if champion else "muted"),
        top=[],
        sections=[
            Section("Champions", blocks),
            Section("Decisions", [Table("The newest first", rows, columns, frozenset({2, 3}))])
            if rows
            else Section("Decisions", [Text("No decision was made yet.")]),
        ],
    )


def _row(
    project: Project, name: str, entry: Entry, version: ModelVersion | None
) -> tuple[Cell, ...]:
    accuracy = f"{version.metrics['accuracy']:.4f}" if version else ""
    has_page = entry.run and (folder_of(project, name) / f"{entry.run}.html").is_file()
    return cells(
        Cell(local_time(entry.time), link=f"{entry.run}.html" if has_page else ""),
        Cell(entry.action, STYLES.get(entry.action, "muted")),
        entry.version,
        accuracy,
        entry.verdict,
        entry.who or "",
        entry.reason or "",
    )


def _timeline(champions: Sequence[Entry], known: dict[int, ModelVersion]) -> Block:
    """The accuracy of each champion from its promotion to the next one's, with its interval."""
    points = [_point(entry, known[entry.version]) for entry in champions]
    first, last = points[0].x, points[-1].x
    places = [
        first + (last - first) * part / DAYS_OF_A_LABEL for part in range(DAYS_OF_A_LABEL + 1)
    ]
    labels = [(place, f"{datetime.fromtimestamp(place):%Y-%m-%d}") for place in places[::2]]
    legend = "Each dot is a promotion or a rollback, with the 95 % interval of its accuracy"
    return charts.curves(
        "Accuracy of the champions",
        [("accuracy on its test images", points)],
        labels,
        legend=f"{legend}.",
        steps=True,
    )


def _point(entry: Entry, version: ModelVersion) -> Point:
    from scipy.stats import binomtest

    accuracy, images = version.metrics["accuracy"], int(version.metrics["rows"])
    interval = binomtest(round(accuracy * images), images).proportion_ci(0.95, method="wilson")
    low, high = float(interval.low), float(interval.high)
    title = (
        f"version {entry.version}, {entry.action} on {local_time(entry.time)}: "
        f"{accuracy:.4f} ({low:.4f} to {high:.4f})"
    )
    return Point(
        datetime.fromisoformat(entry.time).timestamp(), accuracy, title, low, high, marked=True
    )
