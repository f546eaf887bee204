"""What the flows `validate` and `train` tell of their runs: documents, verdicts, places."""

import json
from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from flows.pages import publish
from flows.reports import documents
from retrain.project import Project
from retrain.registry import versions
from retrain.runs import console
from retrain.runs.records import Document
from retrain.runs.run import Run
from retrain.step import REPORT
from tasks.promote import outcome
from tasks.validate.step import say_near_duplicates

FROM_SCRATCH = (
    "The network has started from random weights. A pretrained one is probably better on photos: "
    "retrain init IMAGES --name NAME --pretrained FOLDER, or owner/name of the hub."
)


class DataReport:
    """A report without a document; see `retrain.flow.Report` for each method."""

    def write_page(self, project: Project, document: Document) -> None:
        """Writes the HTML page of a run, which may have failed at any step."""
        publish.write(project, document)


class ChecksReport(DataReport):
    """The report of the flow `validate`: whether the data passes its checks."""

    def document(self, run: Run) -> Document:
        """A run as JSON-able values; the parts of steps that did not run are None."""
        document = documents.of_run(run)
        if "validate" in run.artifacts:
            document["outcome"] = f"The data of {run.workload.name} passes its checks."
        return dict(document)

    def show(self, document: Document) -> None:
        """Shows the size of the data, and where the results are."""
        console.say(f"\n[bold]{escape(document['outcome'])}[/]")
        rows = ", ".join(f"{count:,} {split}" for split, count in document["data"]["rows"].items())
        console.say(f"{rows}; {document['data']['quarantined']:,} images set aside")
        say_near_duplicates(document)
        console.say_places(document)


class TrainingReport(DataReport):
    """The report of the flow `train`; `retrain.flow.Report` describes each method."""

    def document(self, run: Run) -> Document:
        """A run as JSON-able values; the parts of steps that did not run are None."""
        facts = {name: dict(artifact.facts) for name, artifact in run.artifacts.items()}
        decision, scores = facts.get("gate"), facts.get("evaluate", {})
        document: documents.Training = {
            **documents.of_run(run),
            "promote": run.promote is not False,
            "training": facts.get("train"),
            "images": scores.get("images"),
            "precision": scores.get("precision"),
            "metrics": scores.get("metrics"),
            "champion": decision.pop("champion") if decision else None,
            "decision": decision,
            "model": facts.get("promote"),
            "promoted": False,
            "rejected": False,
            "waiting": False,
            "state": None,
        }
        if decision and not document["champion"] and _is_from_scratch(run):
            decision["says"] = [*decision["says"], FROM_SCRATCH]
        document["look"] |= _where_to_look(run)
        if decision is not None and document["model"] is not None:
            state, document["outcome"] = outcome.verdict(document)
            document |= {
                "state": state,
                "promoted": state == "Promoted",
                "rejected": state == "Rejected",
                "waiting": state == "Waiting",
            }
        return dict(document)

    def show(self, document: Document) -> None:
        """Shows the best epoch, the metrics, the rules, the verdict, and where the results are."""
        trained = _in_training(document["training"])
        console.say(f"{trained}; evaluated in {document['precision']}")
        outcome.show(document)
        if document["data"]["quarantined"]:
            console.say(f"{document['data']['quarantined']} images were set aside by the checks.")
        say_near_duplicates(document)
        console.say_places(document)


def _is_from_scratch(run: Run) -> bool:
    """Whether a network for coloured images could have started from published weights."""
    model = run.workload.model.model_dump()
    of_transformers = model["family"] in ("auto", "vit")
    return run.workload.images.channels == 3 and of_transformers and not model.get("pretrained")


def _in_training(facts: Mapping[str, Any]) -> str:
    """The best epoch of a training, and what was trained, in one line."""
    not_metrics = (
        "batch_size",
        "best_epoch",
        "numerics",
        "parameters",
        "start",
        "temperature",
        "weights",
    )
    metrics = [name for name in facts if name not in not_metrics]
    values = ", ".join(f"{name} {console.number(facts[name])}" for name in metrics)
    return (
        f"best epoch {facts['best_epoch']}: {values}; {facts['parameters']:,} parameters, "
        f"{outcome.precision(facts)}, batches of {facts['batch_size']}"
    )


def _where_to_look(run: Run) -> dict[str, str]:
    """Where a person finds the results of a run, by name."""
    project, name = run.project, run.workload.name
    if "promote" in run.artifacts:  # of the version: the training's may be gone
        version = versions.get(project, name, run.artifacts["promote"].facts["version"])
        return {"MLflow run": version.run_id} if version else {}
    if "train" in run.artifacts:
        mlflow = run.artifacts["train"].folder / REPORT / "mlflow.json"
        if mlflow.is_file():
            return {"MLflow run": json.loads(mlflow.read_text(encoding="utf-8"))["run_id"]}
    return {}
