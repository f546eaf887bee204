"""Writes the page of a run, whatever its flow, and the history of its workload."""

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.markup import escape

from flows.pages import history, other_flows, page, training
from retrain.atomic import write_text
from retrain.messages import message_of
from retrain.project import Project
from retrain.runs import console, records
from retrain.runs.records import Document, FlowRun

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
            found = {"workload": workload, "command": _command(flow)}
            write(project, run.document(**found, **records.failure(project, error)))
            raise


def _command(flow: str) -> str:
    """The command that runs a flow again with the parameters of the flow run."""
    from prefect import runtime

    words = ["retrain", flow]
    for name, value in runtime.flow_run.parameters.items():
        if name == "workload":
            words.append(str(value))
        elif value:
            for part in value if isinstance(value, list | tuple) else [value]:
                words += [f"--{name.replace('_', '-')}", *([] if part is True else [str(part)])]
    return shlex.join(words)


def write_run(project: Project, document: Document) -> Path:
    """Writes the page of a run.

    Args:
        project: The clone.
        document: Of a run of any flow with a page, which may have failed.

    Returns:
        The file.
    """
    if document["flow"] in ("train", "validate"):
        text = page.render("training", training.content(project, document))
    else:
        text = page.render("run", other_flows.content(project, document))
    file = page.folder_of(project, document["workload"]) / f"{document['run']}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text)
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
    name = document["workload"]
    latest = page.latest_of(name, document["flow"])
    try:
        file = write_run(project, document)
        write_text(project.root / latest, file.read_text(encoding="utf-8"))
        if "error" in document:
            console.say(f"{'report':<10} {latest}")
        write_text(
            file.with_name(page.INDEX), page.render("history", history.content(project, name))
        )
        records.publish(name, records.outcome(document), project.relative(file))
    except Exception as error:
        console.say(escape(f"The report of the run could not be made: {message_of(error)}"))
        logger.debug("How the report failed:", exc_info=True)
    return document
