"""What the flows have in common that begin with a version of the data."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from retrain.project import Project
from retrain.runs import records
from retrain.runs.records import Document
from retrain.runs.state import RunState
from retrain.step import DataVersion
from retrain.workload import Data, Workload
from tasks.pull.step import data_version, outdated

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

CHECKED = ("rows", "quarantined", "near_duplicates")  # facts of the step `validate`


class DataReport:
    """A report without a document; see `retrain.flow.Report` for each method."""

    def data_version(self, data: Data, project: Project, revision: str | None) -> DataVersion:
        """The version of the data, as the step `pull` will find it."""
        return data_version(data, project, revision)

    def data_warning(self, data: Data, project: Project, revision: str | None) -> str | None:
        """A warning about files of the data that are not under version control."""
        return outdated(data, project, revision)

    def faults(self, workload: Workload, project: Project, force: bool) -> Iterable[str]:
        """None but those of the steps."""
        return ()

    def base_document(self, run: RunState) -> Document:
        """The part of the document that these flows have in common."""
        base = records.base_document(run)
        checked = run.artifacts.get("validate")
        base["data"] |= {name: checked and checked.facts.get(name) for name in CHECKED}
        return base

    def resume(self, project: Project, name: str, run: str) -> "State[Document] | None":
        """A run that is begun again follows its steps."""
        return None

    def wait(self, project: Project, document: Document) -> None:
        """A run does not wait for a person."""
