"""Writes the page of a run, whatever its flow, and the history of its workload."""

import logging
from collections.abc import Callable, Mapping

from flows.pages import history, page, training, without_training
from flows.pages.blocks import Page
from retrain.atomic import write_text
from retrain.messages import message_of
from retrain.project import Project
from retrain.runs.records import Document

PAGES: Mapping[str, Callable[[Project, Document], Page]] = {
    "train": training.page_of,
    "validate": without_training.checks,
    "tune": without_training.search,
    "predict": without_training.predictions,
    "drift": without_training.drift,
    "compare": without_training.comparison,
}

logger = logging.getLogger("retrain")


def write(project: Project, document: Document) -> Document:
    """Writes the page of a run, also as the latest one, and the history of its workload.

    A page that cannot be made is no reason to fail a run: a warning says why.

    Args:
        project: The clone.
        document: Of a run of one of `PAGES`, which may have failed.

    Returns:
        The document.
    """
    name = document.get("workload") or document["a"]["name"]
    folder = page.folder_of(project, name)
    try:
        made = page.render(PAGES[document["flow"]](project, document))
        folder.mkdir(parents=True, exist_ok=True)
        for file in (f"{document['run']}.html", page.LATEST):
            write_text(folder / file, made)
        write_text(folder / page.INDEX, page.render(history.page_of(project, name)))
    except Exception as error:
        logger.warning("The report of the run could not be made: %s", message_of(error))
        logger.debug("How the report failed:", exc_info=True)
    return document
