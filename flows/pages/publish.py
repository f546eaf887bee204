"""Makes the page of a run, whatever its flow, and says where it is."""

from collections.abc import Callable, Mapping
from pathlib import Path

from flows.pages import history, page, training, without_training
from flows.pages.blocks import Page
from retrain.atomic import write_text
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
LATEST, INDEX = "latest.html", "index.html"


def publish(project: Project, document: Document) -> Path:
    """Writes the page of a run, also as the latest one, and the history of its workload.

    Args:
        project: The clone.
        document: Of a run of one of `PAGES`.

    Returns:
        The path of the latest page, which is the same from run to run.
    """
    name = document.get("workload") or document["a"]["name"]
    folder = page.folder_of(project, name)
    made = page.render(PAGES[document["flow"]](project, document))
    folder.mkdir(parents=True, exist_ok=True)
    for file in (f"{document['run']}.html", LATEST):
        write_text(folder / file, made)
    write_text(folder / INDEX, page.render(history.page_of(project, name)))
    return folder / LATEST
