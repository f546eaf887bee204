"""Makes the pages of runs: each one HTML file that needs nothing else.

The templates draw its pictures as SVG, so they follow the reader's colours (dark, print) and can be
read aloud, as an image that Matplotlib draws cannot.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape

from flows.reports.documents import REPORTS, latest_page
from retrain.file_io import write_text
from retrain.messages import message_of
from retrain.params import workload_names
from retrain.project import Project
from retrain.runs import console, records
from retrain.runs.console import local_time, with_local_times
from retrain.runs.records import Document, FlowRun
from retrain.store import Artifact, Store

TEMPLATES = Path(__file__).with_name("templates")
FIGURE = re.compile(r"\s*(<[^>]*>)?[-+]?\d")  # how a cell with a number begins, maybe in a link

logger = logging.getLogger("retrain")


@contextmanager
def flow_run(project: Project, flow: str, workload: str) -> Iterator[FlowRun]:
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
    from flows.pages import suspects, training  # which import pandas

    name, made = document["workload"], outputs(project, document)
    entry = name if name in workload_names(project.params) else f"ENTRY --as {name}"
    shown = {"document": document, "made": made, "entry": entry}
    if document["flow"] in ("train", "validate"):
        return shown | training.content(project, document, made)
    return shown | suspects.content(made)


def outputs(project: Project, document: Document) -> dict[str, Artifact]:
    """What the steps of a run have made, by step, as far as the store still has it."""
    store = Store.of(project)
    ended = [step for step in document.get("steps", ()) if step["path"]]
    found = [store.find(step["step"], step["key"]) for step in ended]
    return {artifact.step: artifact for artifact in found if artifact}


def write_run(project: Project, document: Document) -> Path:
    """Writes the page of a run.

    Args:
        project: The clone.
        document: Of a run of any flow with a page, which may have failed.

    Returns:
        The file.
    """
    file: Path = project.root / REPORTS / document["workload"] / f"{document['run']}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, render("run.html", content(project, document)))
    return file


def write(project: Project, document: Document) -> Document:
    """Writes the page of a run that ends, also as its flow's latest one.

    A page that cannot be made is no reason to fail a run: a warning says why.

    Args:
        project: The clone.
        document: As `write_run` takes it.

    Returns:
        The document.
    """
    latest = latest_page(document["workload"], document["flow"])
    try:
        file = write_run(project, document)
        write_text(project.root / latest, file.read_text(encoding="utf-8"))
    except Exception as error:
        console.say(escape(f"The report of the run could not be made: {message_of(error)}"))
        logger.debug("How the report failed:", exc_info=True)
    else:
        if "error" in document:
            console.say(f"{'report':<10} {latest}")
    return document


def render(template: str, content: Mapping[str, Any]) -> str:
    """The text of a page or of a comment; HTML escapes whatever it is given.

    Args:
        template: The name of a file in `templates/`, without `.j2`.
        content: What the template shows.
    """
    from jinja2 import Environment, FileSystemLoader, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.do"],
    )
    environment.filters |= {
        "text": text,
        "cell": records.cell,
        "cells": cells,
        "local_time": local_time,
        "local_times": with_local_times,
    }
    environment.tests["figure"] = FIGURE.match
    environment.globals |= {"axis": axis, "ticks": ticks, "interval": interval}
    return environment.get_template(f"{template}.j2").render(content)


def text(value: str | float | None) -> str:
    """A text as it is, and a number as people read it."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else console.number(value)


def cells(rows: Iterable[Mapping[str, Any]], *columns: str) -> list[list[Any]]:
    """Rows of a table: a column is the name of a value, or a text with names in braces."""
    return [
        [column.format(**row) if "{" in column else row.get(column) for column in columns]
        for row in rows
    ]


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
