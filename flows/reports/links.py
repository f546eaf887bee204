"""Keeps the report of a run in MLflow, and links to it and to the pages that MLflow has of it."""

from rich.markup import escape

from flows.pages import page
from retrain import tracking
from retrain.messages import message_of
from retrain.project import Project
from retrain.runs import console
from retrain.runs.records import Document

REPORT = "report/report.html"  # the latest one, among the artifacts of the training's MLflow run


def keep_report(project: Project, document: Document) -> None:
    """Keeps the report of a run with the MLflow run of its training, in place of an earlier one.

    That this fails is no reason to fail a run: a warning says why.
    """
    file = page.folder_of(project, document["workload"]) / f"{document['run']}.html"
    run = document["look"].get("MLflow run")
    if run is None or not file.exists():
        return
    try:
        if tracking.is_active(project, run):
            text = file.read_text(encoding="utf-8")
            tracking.client(project).log_text(run, text, REPORT)
    except Exception as error:
        console.say(escape(f"MLflow could not keep the report: {message_of(error)}"))


def links_of(project: Project, document: Document) -> dict[str, str]:
    """The addresses of the report, of the MLflow run and of the version, by name.

    The report is the file, and the others are left out, if no MLflow server runs.
    """
    from retrain.servers import services  # which takes a while, and a run may change nothing

    name, look = document["workload"], document["look"]
    links = {"report": (page.folder_of(project, name) / f"{document['run']}.html").as_uri()}
    server, run = services.mlflow_address(project), look.get("MLflow run")
    if server is None or run is None or (found := tracking.find_run(project, run)) is None:
        return links
    place = f"experiments/{found.info.experiment_id}/runs/{run}"
    links["report"] = tracking.page(server, f"{place}/artifacts/{REPORT}")
    links["MLflow run"] = tracking.page(server, place)
    if model := document["model"]:
        version = f"models/{model['name']}/versions/{model['version']}"
        links["MLflow version"] = tracking.page(server, version)
    return links
