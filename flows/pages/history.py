"""The page of a workload's history: its champions over time, every decision, and failed runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from flows.pages.page import date_ticks, folder_of, point
from flows.pages.run import failed_verdict, verdict
from retrain.messages import local_time
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Entry
from retrain.registry.versions import ModelVersion
from retrain.runs import records
from retrain.runs.records import Document
from tasks.data.metrics import wilson

STYLES = {"promoted": "good", "rejected": "bad", "waiting": "wait", "rolled back": "wait"}
MAX_ROWS = 200  # of the table
MAX_LINES = 2  # of why a run failed: the first may only announce the others
OTHERS = "of versions that were not promoted"


def content(project: Project, name: str) -> dict[str, Any]:
    """What the page of a workload shows, newest decisions first.

    Args:
        project: The clone.
        name: Of the workload.
    """
    entries = decisions.read(project, name).entries
    failures = records.failed_runs(project, name, "train")
    found = {entry.version: versions.get(project, name, entry.version) for entry in entries}
    known = {number: version for number, version in found.items() if version}
    champion = versions.champion(project, name)
    says = f"{name} version {champion.version} is the champion." if champion else ""
    rows = [*(_row(entry, known.get(entry.version)) for entry in entries), *map(_failure, failures)]
    rows = sorted(rows, key=lambda row: row["at"], reverse=True)[:MAX_ROWS]
    pages = {file.stem for file in folder_of(project, name).glob("*.html")}
    counts: Counter[str] = Counter(entry.action for entry in entries)
    counts.update(failed_verdict(document)["name"].lower() for document in failures)
    facts: dict[str, Any] = {"Versions": len(known), "Decisions": len(entries)}
    if champion:
        accuracy = "{:.4f} ({:.4f} to {:.4f})".format(*_accuracy(champion))
        since = [local_time(entry.time) for entry in entries if entry.appoints][-1:]
        facts = {"Accuracy of the champion": accuracy, "Since": " ".join(since)} | facts
    return {
        "title": f"{name}: history",
        "origin": name,
        "verdict": verdict(
            "History", says or f"{name} has no champion.", "●", "good" if says else "muted"
        ),
        "workload": name,
        "facts": facts | {action.capitalize(): count for action, count in counts.items()},
        "rows": [row | {"has_page": row["run"] in pages} for row in rows],
        "older": len(entries) - sum(row["version"] is not None for row in rows),
        **pictures(entries, known),
    }


def pictures(entries: Sequence[Entry], known: Mapping[int, ModelVersion]) -> dict[str, Any]:
    """The accuracy of the versions over time, and the size of their test splits, as curves.

    Args:
        entries: The decisions, oldest first.
        known: The versions that they are about, as far as the registry has them.
    """
    drawn = [(entry, known[entry.version]) for entry in entries if entry.version in known]
    champions = [_point(entry, version) for entry, version in drawn if entry.appoints]
    if len(champions) < 2:
        return {"accuracy": None}
    lowest = min(champion["low"] for champion in champions)
    others = [_point(entry, version, lowest) for entry, version in drawn if not entry.appoints]
    sizes = [(_seconds(entry.time), version.metrics["rows"], entry) for entry, version in drawn]
    return {
        "accuracy": {"the champion's": champions} | ({OTHERS: others} if others else {}),
        "sizes": [
            point(time, rows, f"version {entry.version}: {rows:,.0f} test images")
            for time, rows, entry in sizes
        ],
        "labels": date_ticks(sizes[0][0], sizes[-1][0]),
    }


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def _accuracy(version: ModelVersion) -> tuple[float, float, float]:
    """The accuracy of a version, and its 95 % interval."""
    accuracy, images = version.metrics["accuracy"], int(version.metrics["rows"])
    return accuracy, *wilson(round(accuracy * images), images)


def _point(entry: Entry, version: ModelVersion, lowest: float | None = None) -> dict[str, Any]:
    """A decision in the picture; one that made no champion is a dot, not below the lowest."""
    accuracy, low, high = _accuracy(version)
    title = f"version {entry.version}, {entry.action} on {local_time(entry.time)}: {accuracy:.4f}"
    if lowest is not None:
        return point(_seconds(entry.time), max(accuracy, lowest), title, style="hollow")
    title = f"{title} ({low:.4f} to {high:.4f})"
    is_rollback = entry.action == "rolled back"
    return point(_seconds(entry.time), accuracy, title, low=low, high=high, marked=is_rollback)


def _row(entry: Entry, version: ModelVersion | None) -> dict[str, Any]:
    """A decision in the table."""
    return {
        "at": entry.time,
        "run": entry.run,
        "decision": (entry.action, STYLES.get(entry.action, "muted")),
        "version": entry.version,
        "metrics": version.metrics if version else {},
        "verdict": entry.verdict,
        "who": entry.who,
        "reason": entry.reason,
    }


def _failure(document: Document) -> dict[str, Any]:
    """A run that failed, in the table."""
    ended = failed_verdict(document)
    return {
        "at": document["time"],
        "run": document["run"],
        "decision": (ended["name"].lower(), ended["style"]),
        **dict.fromkeys(("version", "verdict", "who")),
        "metrics": {},
        "reason": " ".join(document["error"].splitlines()[:MAX_LINES]),
    }
