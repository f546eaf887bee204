"""The page of a workload's history: its champions over time, every decision, and failed runs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np

from flows.pages.page import folder_of, interval
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Entry
from retrain.runs import records

FEW_DAYS = 5 * 86400.0  # seconds in which a date alone does not tell decisions apart


def content(project: Project, name: str) -> dict[str, Any]:
    """What the page of a workload shows.

    Args:
        project: The clone.
        name: Of the workload.

    Returns:
        The `champion`; the decisions, the oldest first, each with the metrics of its version; the
        one that is `waiting`; all failed trainings that are kept; the newest of both as `rows`; and
        the runs that have a page.
    """
    ledger, champion = decisions.read(project, name), None
    with suppress(ValueError):  # it was deleted, as `status` says
        champion = versions.champion(project, name)
    entries = [_described(project, name, entry) for entry in ledger.entries]
    failures = records.failed_runs(project, name, "train")
    rows = sorted([*entries, *failures], key=lambda row: str(row["time"]), reverse=True)
    measured = [entry for entry in entries if entry["metrics"]]
    return {
        "workload": name,
        "champion": champion,
        "entries": entries,
        "measured": measured,
        "dates": dates([entry["at"] for entry in measured]),
        "waiting": ledger.waiting,
        "failures": failures,
        "rows": rows,
        "pages": {file.stem for file in folder_of(project, name).glob("*.html")},
    }


def _described(project: Project, name: str, entry: Entry) -> dict[str, Any]:
    """A decision, with the metrics of its version and the interval of the accuracy."""
    version = versions.get(project, name, entry.version)
    described = asdict(entry) | {"at": datetime.fromisoformat(entry.time).timestamp()}
    described |= {"appoints": entry.appoints, "metrics": version.metrics if version else {}}
    if version:
        low, high = interval(version.metrics["accuracy"], version.metrics["rows"])
        described |= {"low": low, "high": high}
    return described


def dates(times: Sequence[float]) -> list[tuple[float, str]]:
    """Three places on an axis of times (seconds since 1970), and the local dates there."""
    if not times:
        return []
    form = "%d %b %H:%M" if times[-1] - times[0] < FEW_DAYS else "%d %b %Y"
    places = np.linspace(times[0], times[-1], 7)[1::2].tolist()
    return [(place, datetime.fromtimestamp(place).strftime(form)) for place in places]
