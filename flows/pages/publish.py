"""Makes the pages of runs, and of a workload's history: each one HTML file that needs nothing else.

The templates draw its pictures as SVG, so they follow the reader's colours (dark, print) and can be
read aloud, as an image that Matplotlib draws cannot.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.markup import escape

from flows.pages import suspects, training
from retrain.disk import write_text
from retrain.messages import local_time, message_of, with_local_times
from retrain.params import workload_names
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Entry
from retrain.runs import console, records
from retrain.runs.records import Document, FlowRun
from retrain.store import Store

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
FOLDER, LATEST, INDEX = "reports", "latest.html", "index.html"
FIGURE = re.compile(r"\s*(<[^>]*>)?[-+]?\d")  # how a cell with a number begins, maybe in a link
FEW_DAYS = 5 * 86400.0  # seconds in which a date alone does not tell decisions apart

logger = logging.getLogger("retrain")


@contextmanager
def begun(project: Project, flow: str, workload: str) -> Iterator[FlowRun]:
    """Begins a run of a flow without steps, as `records.begun` does; a page says why it failed.

    Args:
        project: The clone.
        flow: The name of the flow.
        workload: In whose folder the page is.
    """
    with records.begun(project, flow) as run:
        try:
            yield run
        except Exception as error:
            write(project, run.document(workload=workload, **records.failure(project, error)))
            raise


def content(project: Project, document: Document) -> dict[str, Any]:
    """What the page of a run shows.

    Returns:
        Its `document`; what its steps have `made`, as far as the store still has it; the `entry` of
        its workload; and what `training.content` or `suspects.content` gives.
    """
    name, store = document["workload"], Store.of(project)
    ended = [step for step in document.get("steps", ()) if step["path"]]
    found = [store.find(step["step"], step["key"]) for step in ended]
    made = {artifact.step: artifact for artifact in found if artifact}
    entry = name if name in workload_names(project.params) else f"ENTRY --as {name}"
    shown = {"document": document, "made": made, "entry": entry}
    if document["flow"] in ("train", "validate"):
        return shown | training.content(project, document, made)
    return shown | suspects.content(made)


def write_run(project: Project, document: Document) -> Path:
    """Writes the page of a run.

    Args:
        project: The clone.
        document: Of a run of any flow with a page, which may have failed.

    Returns:
        The file.
    """
    file = folder_of(project, document["workload"]) / f"{document['run']}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, render("run", content(project, document)))
    return file


def write(project: Project, document: Document) -> Document:
    """Writes the page of a run that ends, also as its flow's latest one, and the history.

    A page that cannot be made is no reason to fail a run: a warning says why.

    Args:
        project: The clone.
        document: As `write_run` takes it.

    Returns:
        The document.
    """
    for title, write_page in (
        ("report of the run", _write_report),
        ("history of the workload", _write_history),
    ):
        try:
            write_page(project, document)
        except Exception as error:
            console.say(escape(f"The {title} could not be made: {message_of(error)}"))
            logger.debug("How the page failed:", exc_info=True)
    return document


def _write_report(project: Project, document: Document) -> None:
    name, file = document["workload"], write_run(project, document)
    latest = latest_of(name, document["flow"])
    write_text(project.root / latest, file.read_text(encoding="utf-8"))
    if "error" in document:
        console.say(f"{'report':<10} {latest}")


def _write_history(project: Project, document: Document) -> None:
    name = document["workload"]
    html = render("history", history(project, name))
    write_text(folder_of(project, name) / INDEX, html)


def history(project: Project, name: str) -> dict[str, Any]:
    """What the page of a workload's history shows: champions, decisions, failed runs.

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


def render(template: str, content: Mapping[str, Any]) -> str:
    """The HTML of a page; whatever it is given is escaped.

    Args:
        template: The name of a file in `templates/`, without its ending.
        content: What the template shows.
    """
    return environment().get_template(f"{template}.html.j2").render(content)


def environment() -> "Environment":
    """The templates, and what they call."""
    from jinja2 import Environment, FileSystemLoader

    found = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    found.filters |= {"shown": shown, "local_time": local_time, "local_times": with_local_times}
    found.tests["figure"] = FIGURE.match
    found.globals |= {"axis": axis, "ticks": ticks, "interval": interval}
    return found


def shown(value: str | float | None) -> str:
    """A text as it is, and a number as people read it."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else console.number(value)


def axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Where values are drawn: `low` at `start`, `high` at `end`, and what is beyond at its end."""

    def place(value: float) -> float:
        share = (value - low) / ((high - low) or 1.0)
        return round(start + min(max(share, 0.0), 1.0) * (end - start), 2)

    return place


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Round values within bounds, at most one more than a count; one if the bounds are the same."""
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(count, integer=whole).tick_values(low, high)
    return [round(float(place), 10) for place in places if low <= place <= high] or [low]


def interval(share: float, images: float) -> tuple[float, float]:
    """The ends of the 95 % interval of a share of some images."""
    from tasks.data.metrics import wilson

    return wilson(round(share * images), int(images))


def folder_of(project: Project, workload: str) -> Path:
    """The folder with the pages of a workload."""
    return project.root / FOLDER / workload


def latest_of(workload: str, flow: str) -> str:
    """Where the latest page of a flow is, relative to the project; `latest.html` for trainings."""
    return f"{FOLDER}/{workload}/{LATEST if flow == 'train' else f'{flow}.html'}"
