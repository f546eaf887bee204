"""What the flow `validate` tells of a run: whether the data passes its checks."""

from flows.reports.data import DataReport
from retrain.project import Project
from retrain.runs import console, records
from retrain.runs.records import Document
from retrain.runs.state import RunState
from retrain.step import REPORT
from tasks.validate.outcome import say_near_duplicates


class ChecksReport(DataReport):
    """See `retrain.flow.Report` for each method."""

    def document(self, run: RunState) -> Document:
        """A run as JSON-able values; the parts of steps that did not run are None."""
        checked, base = run.artifacts.get("validate"), self.base_document(run)
        if checked is None:
            return base | {"look": {}, "outcome": None}
        docs = checked.folder / REPORT / "data_docs" / "index.html"
        outcome = f"The data of {run.workload.name} passes its checks."
        return base | {
            "look": {"Data Docs": run.context.project.relative(docs)},
            "outcome": outcome,
        }

    def standing(self, document: Document) -> str:
        """The result of the checks."""
        return "the data passes its checks"

    def show(self, document: Document) -> None:
        """Shows the size of the data, and where the results are."""
        from rich.markup import escape

        console.say(f"\n[bold]{escape(document['outcome'])}[/]")
        rows = ", ".join(f"{count:,} {split}" for split, count in document["data"]["rows"].items())
        console.say(f"{rows}; {document['data']['quarantined']:,} images set aside")
        say_near_duplicates(document)
        console.say_places(document)

    def publish(self, project: Project, document: Document) -> None:
        """Shows a summary as an artifact of the Prefect flow run."""
        from prefect.artifacts import create_markdown_artifact

        name = document["workload"].lower().replace("_", "-")
        lines = [
            f"# {document['outcome']}",
            "",
            records.data_in_markdown(document),
            "",
            *records.steps_in_markdown(document),
        ]
        create_markdown_artifact(key=f"{name}-data", markdown="\n".join(lines))
