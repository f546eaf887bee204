"""What runs have led to, read from the files of a clone, and what must be true of it."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.project import Project
from retrain.registry import ledger, sqlite_reader
from retrain.store import Store
from tests.flows.conftest import Clone

FINAL = ("COMPLETED", "CRASHED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Outcome:
    """What must be the same after a disturbed run as after an undisturbed one.

    Attributes:
        weights: The digest of the model's weights.
        versions: How many versions of the model there are.
        champion: The version that is champion.
        decisions: The ledger: what was decided, about which version.
        trainings: How many runs of trainings MLflow has.
    """

    weights: str
    versions: int
    champion: int | None
    decisions: tuple[tuple[str, int], ...]
    trainings: int


def outcome_of(clone: Clone, output: str) -> Outcome:
    """Reads the outcome of a run that printed its document."""
    document = json.loads(output[output.index("{") :])
    model = sqlite_reader.read(_tracking_uri(clone), "vit")
    assert model is not None
    return Outcome(
        weights=document["model"]["digest"],
        versions=len(model.versions),
        champion=model.aliases.get("champion"),
        decisions=tuple((event.action, event.version) for _, event in ledger.read(model)),
        trainings=_query(clone.root / "mlflow.db", "SELECT count(*) FROM runs")[0][0],
    )


def faults(clone: Clone, outcome: Outcome, expected: Outcome) -> list[str]:
    """What is wrong after a trial."""
    wrong = []
    for name, value in vars(expected).items():
        if getattr(outcome, name) != value:
            wrong.append(f"{name} is {getattr(outcome, name)}, not {value}")
    statuses = Counter(status for (status,) in _mlflow(clone, "SELECT status FROM runs"))
    if set(statuses) != {"FINISHED"}:
        wrong.append(f"MLflow's runs are {dict(statuses)}")
    if doubled := _mlflow(
        clone,
        "SELECT key, step, count(*) FROM metrics GROUP BY run_uuid, key, step HAVING count(*) > 1",
    ):
        wrong.append(f"metrics are logged twice: {doubled[:3]}")
    runs = _prefect(clone, "SELECT state_type FROM flow_run")
    tasks = _prefect(clone, "SELECT state_type FROM task_run")
    for what, states in (("runs", runs), ("tasks", tasks)):
        if going_on := Counter(state for (state,) in states if state not in FINAL):
            wrong.append(f"Prefect's {what} go on: {dict(going_on)}")
    project = Project(clone.root)
    leftovers = [str(left.path) for left in Store(project.store).leftovers()]
    leftovers += [str(path) for path in _unfinished(clone.root)]
    if leftovers:
        wrong.append(f"files are left: {leftovers}")
    return wrong


def _unfinished(root: Path) -> list[Path]:
    """Partial files, and the marks of processes, which all have ended."""
    patterns = (".*.partial", ".retrain/**/.*.partial", ".retrain/processes/*", ".*.lock")
    patterns += (".retrain/store/.holds/*", "mlruns/**/.*.partial")
    return [path for pattern in patterns for path in root.glob(pattern)]


def _mlflow(clone: Clone, text: str) -> list[tuple[Any, ...]]:
    return _query(clone.root / "mlflow.db", text)


def _prefect(clone: Clone, text: str) -> list[tuple[Any, ...]]:
    return _query(clone.root / ".retrain" / "prefect" / "prefect.db", text)


def _query(database: Path, text: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return connection.execute(text).fetchall()


def _tracking_uri(clone: Clone) -> str:
    return f"sqlite:///{clone.root / 'mlflow.db'}"
