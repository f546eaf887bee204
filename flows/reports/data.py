"""What the flows have in common that begin with a version of the data."""

from typing import TYPE_CHECKING

from retrain.project import Project
from retrain.runs import records
from retrain.runs.records import Document
from retrain.runs.state import RunState

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

CHECKED = ("rows", "quarantined", "near_duplicates")  # facts of the step `validate`


class DataReport:
    """A report without a document; see `retrain.flow.Report` for each method."""

    def base_document(self, run: RunState) -> Document:
        """The part of the document that these flows have in common."""
        base = records.base_document(run)
        checked = run.artifacts.get("validate")
        base["data"] |= {name: checked and checked.facts.get(name) for name in CHECKED}
        return base

    def resume(self, project: Project, name: str, run: str) -> "State[Document] | None":
        """A run that is begun again follows its steps."""
        return None
