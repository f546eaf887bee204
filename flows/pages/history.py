"""The page of a workload's history: its champions over time, every decision, and failed runs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice
from pathlib import Path

from flows.pages import charts
from flows.pages.blocks import (
    Block,
    Cell,
    Command,
    Page,
    Section,
    Summary,
    Table,
    Text,
    Verdict,
    cells,
)  # fmt: skip
from flows.pages.charts import Point
from flows.pages.page import folder_of
from flows.pages.training import failed_verdict
from retrain.messages import local_time
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Entry
from retrain.registry.versions import ModelVersion
from retrain.runs import records
from retrain.runs.records import Document
from tasks.data.metrics import wilson

STYLES = {"promoted": "good", "rejected": "bad", "waiting": "wait", "rolled back": "wait"}
WIDTH = 960  # pixels of a picture
MAX_ROWS = 200  # of the table
MAX_LINES = 2  # of why a run failed: the first may only announce the others


def page_of(project: Project, name: str) -> Page:
    """The page of a workload, newest decisions first.

    Args:
        project: The clone.
        name: Of the workload.
    """
    entries = decisions.read(project, name).entries
    failures = records.failed_runs(project, name, "train")
    numbers = {entry.version for entry in entries}
    found = {number: versions.get(project, name, number) for number in numbers}
    known = {number: version for number, version in found.items() if version}
    champion = versions.champion(project, name)
    sentence = f"{name} has no champion."
    if champion:
        sentence = f"{name} version {champion.version} is the champion."
    return Page(
        title=f"{name}: history",
        origin=name,
        verdict=Verdict("History", sentence, "●", "good" if champion else "muted"),
        top=list(_top(entries, failures, known, champion)),
        sections=[
            Section("Versions", list(pictures(entries, known))),
            Section(
                "Decisions", list(table(entries, failures, known, name, folder_of(project, name)))
            ),
        ],
    )


def _top(
    entries: Sequence[Entry],
    failures: Sequence[Document],
    known: Mapping[int, ModelVersion],
    champion: ModelVersion | None,
) -> Iterator[Block]:
    facts = [("Versions", f"{len(known):,}"), ("Decisions", f"{len(entries):,}")]
    counts = Counter[str](entry.action for entry in entries)
    counts.update(failed_verdict(document).name for document in failures)
    facts += [(action.capitalize(), f"{count:,}") for action, count in counts.items()]
    if champion:
        accuracy, low, high = _accuracy(champion)
        since = [entry for entry in entries if entry.appoints][-1:]
        facts = [
            ("Accuracy of the champion", f"{accuracy:.4f} ({low:.4f} to {high:.4f})"),
            *(("Since", local_time(entry.time)) for entry in since),
            *facts,
        ]
    yield Summary(facts)


def pictures(entries: Sequence[Entry], known: Mapping[int, ModelVersion]) -> Iterator[Block]:
    """The accuracy of the versions over time, and the size of their test splits.

    Args:
        entries: The decisions, oldest first.
        known: The versions that they are about, as far as the registry has them.
    """
    drawn = [entry for entry in entries if entry.version in known]
    champions = [_point(entry, known[entry.version]) for entry in drawn if entry.appoints]
    if len(champions) < 2:
        yield Text("From the second champion on, a picture shows how they have improved.", "muted")
        return
    lowest = min(point.low or 0.0 for point in champions)
    others = [_point(entry, known[entry.version], lowest) for entry in drawn if not entry.appoints]
    sizes = [
        Point(
            datetime.fromisoformat(entry.time).timestamp(),
            known[entry.version].metrics["rows"],
            f"version {entry.version}: {known[entry.version].metrics['rows']:,.0f} test images",
        )
        for entry in drawn
    ]
    labels = charts.date_ticks(sizes[0].x, sizes[-1].x)
    lines = [("the champion's", champions), ("of versions that were not promoted", others)]
    yield charts.curves(
        "Accuracy on the test images",
        [line for line in lines if line[1]],
        labels,
        legend="A vertical line is a 95 % interval, and a large dot a rollback; what is below the "
        "axis is at its lower end.",
        steps=True,
        width=WIDTH,
    )
    yield charts.curves(
        "Test images", [("of each version", sizes)], labels, steps=True, width=WIDTH
    )


def _accuracy(version: ModelVersion) -> tuple[float, float, float]:
    """The accuracy of a version, and its 95 % interval."""
    accuracy, images = version.metrics["accuracy"], int(version.metrics["rows"])
    return accuracy, *wilson(round(accuracy * images), images)


def _point(entry: Entry, version: ModelVersion, lowest: float | None = None) -> Point:
    """A decision in the picture; one that made no champion is a dot, not below the lowest."""
    accuracy, low, high = _accuracy(version)
    title = f"version {entry.version}, {entry.action} on {local_time(entry.time)}: {accuracy:.4f}"
    place = datetime.fromisoformat(entry.time).timestamp()
    if lowest is not None:
        return Point(place, max(accuracy, lowest), title, style="hollow")
    title = f"{title} ({low:.4f} to {high:.4f})"
    return Point(place, accuracy, title, low, high, marked=entry.action == "rolled back")


def table(
    entries: Sequence[Entry],
    failures: Sequence[Document],
    known: Mapping[int, ModelVersion],
    name: str,
    folder: Path,
) -> Iterator[Block]:
    """The decisions and the failed runs, the newest first.

    A link leads to the page of a run.

    Args:
        entries: The decisions, oldest first.
        failures: The documents of the runs that failed, oldest first.
        known: The versions that they are about, as far as the registry has them.
        name: Of the workload.
        folder: Where the pages of its runs are.
    """
    newest_first: list[Iterator[Entry | Document]] = [reversed(entries), reversed(failures)]
    shown = list(islice(merge(*newest_first, key=_time, reverse=True), MAX_ROWS))
    rows = [
        _row(line, known.get(line.version), folder)
        if isinstance(line, Entry)
        else _failure(line, folder)
        for line in shown
    ]
    columns = ("time", "decision", "version", "accuracy", "test images", "verdict", "by", "reason")
    if rows:
        yield Table("The newest first", rows, columns, frozenset({2, 3, 4}))
    else:
        yield Text("No decision was made yet.")
    if older := len(entries) - sum(isinstance(line, Entry) for line in shown):
        yield Command(f"{older:,} older decisions", f"retrain history {name}")


def _time(line: Entry | Document) -> str:
    return line.time if isinstance(line, Entry) else str(line["time"])


def _row(entry: Entry, version: ModelVersion | None, folder: Path) -> tuple[Cell, ...]:
    return cells(
        _when(entry.time, entry.run, folder),
        Cell(entry.action, STYLES.get(entry.action, "muted")),
        entry.version,
        f"{version.metrics['accuracy']:.4f}" if version else "",
        f"{version.metrics['rows']:,.0f}" if version else "",
        entry.verdict,
        entry.who or "",
        entry.reason or "",
    )


def _failure(document: Document, folder: Path) -> tuple[Cell, ...]:
    verdict = failed_verdict(document)
    return cells(
        _when(document["time"], document["run"], folder),
        Cell(verdict.name.lower(), verdict.style),
        *[""] * 5,
        " ".join(document["error"].splitlines()[:MAX_LINES]),
    )


def _when(time: str, run: str | None, folder: Path) -> Cell:
    """When something happened in a run, with a link to its page if there is one."""
    has_page = run and (folder / f"{run}.html").is_file()
    return Cell(local_time(time), "whole", link=f"{run}.html" if has_page else "")
