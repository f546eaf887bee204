"""What the flows have in common that begin with a version of the data; the report of its checks."""

from typing import TYPE_CHECKING

from rich.markup import escape

from retrain.project import Project
from retrain.runs import console, records
from retrain.runs.records import Document, artifact_key
from retrain.runs.state import RunState
from retrain.step import REPORT
from tasks.validate.outcome import say_near_duplicates

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

CHECKED = ("rows", "quarantined", "near_duplicates")  # facts of the step `validate`


class DataReport:
    """A report without a document; see `retrain.flow.Report` for each method.

    Attributes:
        kind: The last part of the key of the summary in Prefect.
    """

    kind = "summary"

    def base_document(self, run: RunState) -> Document:
        """The part of the document that these flows have in common."""
        base = records.base_document(run) | {"look": {}, "outcome": None}
        checked = run.artifacts.get("validate")
        base["data"] |= {name: checked and checked.facts.get(name) for name in CHECKED}
        if checked:
            docs = checked.folder / REPORT / "data_docs" / "index.html"
            base["look"]["Data Docs"] = run.context.project.relative(docs)
        return base

    def details(self, document: Document) -> list[str]:
        """The lines that a flow adds to the summary of a run, in Markdown."""
        return []

    def publish(self, project: Project, document: Document) -> None:
        """Shows a summary as an artifact of the Prefect flow run."""
        from prefect.artifacts import create_markdown_artifact

        data = document["data"]
        rows = ", ".join(f"{count} {split}" for split, count in data["rows"].items())
        lines = [
            f"# {document['workload']}: {document['outcome']}",
            "",
            f"Data `{data['version']}`: {rows}; {data['quarantined']} set aside.",
            "",
            *self.details(document),
            *records.steps_in_markdown(document),
            "",
            *(f"- {name}: `{place}`" for name, place in document["look"].items()),
        ]
        key = artifact_key(document["workload"], self.kind)
        create_markdown_artifact(key=key, markdown="\n".join(lines))

    def resume(self, project: Project, name: str, run: str) -> "State[Document] | None":
        """A run that is begun again follows its steps."""
        return None


class ChecksReport(DataReport):
    """The report of the flow `validate`: whether the data passes its checks."""

    kind = "data"

    def document(self, run: RunState) -> Document:
        """A run as JSON-able values; the parts of steps that did not run are None."""
        base = self.base_document(run)
        if "validate" not in run.artifacts:
            return base
        return base | {"outcome": f"The data of {run.workload.name} passes its checks."}

    def standing(self, document: Document) -> str:
        """The result of the checks."""
        return "the data passes its checks"

    def show(self, document: Document) -> None:
        """Shows the size of the data, and where the results are."""
        console.say(f"\n[bold]{escape(document['outcome'])}[/]")
        rows = ", ".join(f"{count:,} {split}" for split, count in document["data"]["rows"].items())
        console.say(f"{rows}; {document['data']['quarantined']:,} images set aside")
        say_near_duplicates(document)
        console.say_places(document)
