"""Writes the page of a run, whatever its flow, and the history of its workload."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape

from flows.pages import history, page, training
from retrain.disk import write_text
from retrain.messages import message_of
from retrain.params import workload_names
from retrain.project import Project
from retrain.runs import console, records
from retrain.runs.records import Document, FlowRun
from retrain.store import Store
from tasks.data import review_list

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
        its workload; of a training or a check of data, what `training.content` gives; and the rows
        of the list for people, if it has written one.
    """
    name, store = document["workload"], Store.of(project)
    ended = [step for step in document.get("steps", ()) if step["path"]]
    found = [store.find(step["step"], step["key"]) for step in ended]
    made = {artifact.step: artifact for artifact in found if artifact}
    entry = name if name in workload_names(project.params) else f"ENTRY --as {name}"
    shown = {"document": document, "made": made, "entry": entry}
    if document["flow"] in ("train", "validate"):
        return shown | training.content(project, document, made)
    tasks = document.get("look", {}).get("tasks")
    return shown | {"listed": review_list.read(project.root, tasks) if tasks else []}


def write_run(project: Project, document: Document) -> Path:
    """Writes the page of a run.

    Args:
        project: The clone.
        document: Of a run of any flow with a page, which may have failed.

    Returns:
        The file.
    """
    file = page.folder_of(project, document["workload"]) / f"{document['run']}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, page.render("run", content(project, document)))
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
    latest = page.latest_of(name, document["flow"])
    write_text(project.root / latest, file.read_text(encoding="utf-8"))
    if "error" in document:
        console.say(f"{'report':<10} {latest}")


def _write_history(project: Project, document: Document) -> None:
    name = document["workload"]
    html = page.render("history", history.content(project, name))
    write_text(page.folder_of(project, name) / page.INDEX, html)
