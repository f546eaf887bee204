"""What the flows without steps share: how a run of theirs begins, and what all documents hold."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from retrain import preflight
from retrain.project import Project
from retrain.runs import lost
from retrain.runs.records import Document
from retrain.store import Store


@dataclass(frozen=True)
class FlowRun:
    """A run of a flow without steps.

    Attributes:
        project: The clone.
        store: What it reads, and where it keeps what it needs meanwhile.
        id: The id of the Prefect flow run, which holds artifacts.
        flow: The name of the flow.
        began: When, in seconds of the monotonic clock.
    """

    project: Project
    store: Store
    id: str
    flow: str
    began: float = field(default_factory=monotonic)

    def document(self, **results: Any) -> Document:
        """The run's document, as `--json` prints it: what all have, and the results."""
        return {
            "flow": self.flow,
            "run": self.id,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(monotonic() - self.began, 3),
            **results,
        }


@contextmanager
def begun(project: Project, flow: str) -> Iterator[FlowRun]:
    """Begins the work of a Prefect flow run, after what the user has given was checked.

    Args:
        project: The clone.
        flow: The name of the flow.

    Raises:
        ValueError: A server or a folder that it needs is not there.
    """
    from prefect import runtime

    lost.end_lost_runs(project)
    preflight.check_surroundings(project)
    run = FlowRun(project, Store(project.store), str(runtime.flow_run.id), flow)
    with run.store.holding(run.id):
        yield run


def artifact_key(name: str, kind: str) -> str:
    """The key of an artifact of a flow run, which Prefect wants in lower case with dashes."""
    return f"{name.lower().replace('_', '-')}-{kind}"


def publish_table(
    name: str, kind: str, rows: Sequence[Mapping[str, Any]], description: str
) -> None:
    """Shows a table as an artifact of the Prefect flow run.

    Args:
        name: What it is about: the workload or the model.
        kind: What it holds, in a word.
        rows: Of each row, the values by column.
        description: A sentence above it, in Markdown.
    """
    from prefect.artifacts import create_table_artifact

    table = [dict(row) for row in rows]
    create_table_artifact(key=artifact_key(name, kind), table=table, description=description)
