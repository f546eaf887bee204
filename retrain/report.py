"""What a flow with steps tells of its runs: the interface of the reports in `flows/reports/`."""

from typing import Protocol

from retrain.project import Project
from retrain.runs.records import Document
from retrain.runs.state import RunState


class Report(Protocol):
    """What a flow with steps tells of a run."""

    def document(self, run: RunState) -> Document:
        """Describes a run, which may have failed at any step, in JSON-able values.

        `outcome` is a sentence about its end; people get it if `rejected` or `waiting` is true.
        """

    def show(self, document: Document) -> None:
        """Shows a run on the console."""

    def write_page(self, project: Project, document: Document) -> None:
        """Writes the page of a run, which may have failed at any step."""
