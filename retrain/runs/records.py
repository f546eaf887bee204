"""The documents of runs, and their records: one file per run, by flow and workload.

What a document has, `flows/reports/documents.py` says.
"""

import glob
import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from retrain.errors import RejectedDataError, UsageError, did_you_mean
from retrain.file_io import write_json
from retrain.messages import message_of
from retrain.params import workload_names
from retrain.project import Project
from retrain.runs import console, liveness, preflight
from retrain.store import Store

Document = dict[str, Any]

LATEST = "latest.json"


def failure(project: Project, error: Exception) -> Document:
    """The part of a failed run's document that says why it failed, and which file has its log.

    `refused` is true if the data did not pass its checks.
    """
    log = console.Output.log
    return {
        "error": message_of(error),
        "refused": isinstance(error, RejectedDataError),
        "log": None if log is None else project.relative(log),
    }


def outcome(document: Document) -> str:
    """How a run ended, in one sentence: the flow's `outcome`, or why the run failed."""
    if "error" in document:
        return f"failed: {document['error']}"
    return str(document["outcome"])


def names(project: Project) -> list[str]:
    """The names of all workloads: the entries of `params.yaml`, then others of recorded runs."""
    listed = workload_names(project.params)
    recorded = {path.parent.name for path in _runs(project).glob(f"*/*/{LATEST}")}
    return listed + sorted(recorded - set(listed))


def check_name(project: Project, name: str) -> None:
    """Refuses the name of a workload that does not exist and was never run here.

    Raises:
        UsageError: With the closest name.
    """
    known_names = names(project)
    if name not in known_names:
        raise UsageError(
            f"No workload {name!r} in params.yaml or run here.{did_you_mean(name, known_names)}"
        )


def last_run(project: Project, workload: str, flow: str | None = None) -> Document | None:
    """The document of a workload's last run that was not killed; None before the first.

    Args:
        project: The clone.
        workload: The name of the workload.
        flow: The name of the flow; the last run of any flow if None.
    """
    paths = _runs(project).glob(f"{flow or '*'}/{workload}/{LATEST}")
    return max(map(_read, paths), key=_time, default=None)


def lost_champion(project: Project, workload: str) -> str | None:
    """Which champion the trainings of this clone had, where the registry has none; None if none.

    Args:
        project: The clone.
        workload: The name of the workload.
    """
    files = (_runs(project) / "train" / workload).glob("*.json")
    found = [run for run in map(_read, files) if run.get("champion") or run.get("promoted")]
    if not found:
        return None
    last = max(found, key=_time)
    return (
        f"the registry has no champion of {workload}, but run {last['run'][:8]} of "
        f"{last['time'][:10]} had one here: if the registry was lost, bring it back"
    )


def find_run(project: Project, workload: str, run: str | None) -> Document | None:
    """The document of a run of a flow with steps; the last one of the workload without an id.

    Args:
        project: The clone.
        workload: The name of the workload.
        run: The id of the run, or how it begins.
    """
    if run is None:
        return last_run(project, workload)
    files = sorted(_runs(project).glob(f"*/{workload}/{glob.escape(run)}*.json"))
    return _read(files[0]) if files else None


def _read(path: Path) -> Document:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _time(document: Document) -> str:
    return str(document["time"])


def write(project: Project, document: Document) -> None:
    """Writes the record of a run that has ended, also as the last one of its workload."""
    folder = _runs(project) / document["flow"] / document["workload"]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{document['run']}.json", document)
    write_json(folder / LATEST, document)


def _runs(project: Project) -> Path:
    return project.state / "runs"


@dataclass(frozen=True)
class FlowRun:
    """A run of a flow without steps.

    Attributes:
        project: The clone.
        store: The store that it reads, and where it keeps temporary files.
        id: The id of the Prefect flow run, which holds artifacts.
        flow: The name of the flow.
        began: When the run began, in seconds of the monotonic clock.
    """

    project: Project
    store: Store
    id: str
    flow: str
    began: float = field(default_factory=monotonic)

    def document(self, **results: Any) -> Document:
        """The run's document, as `--json` prints it: the part of all runs, and the results."""
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

    with liveness.Processes(project.store).hold():
        liveness.end_lost_runs(project)
        preflight.check_surroundings(project)
        yield FlowRun(project, Store.of(project), str(runtime.flow_run.id), flow)


def cell(text: str) -> str:
    """A text, which may have names that the user has given, as it is shown in Markdown."""
    text = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\|\[\]`])", r"\\\1", text)
