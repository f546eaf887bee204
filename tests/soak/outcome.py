"""What runs have led to, read from the files of a clone, and what must be true of it."""

import json
import sqlite3
from collections import Counter
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from retrain.project import Project
from retrain.registry import ledger, snapshot
from retrain.store import Store
from tests.flows.conftest import Clone

FINAL = ("COMPLETED", "CRASHED", "FAILED", "CANCELLED")
WRITTEN_SECONDS = 20.0  # for a server that is up to write what it was told of tasks


@dataclass(frozen=True)
class Outcome:
    """What must be the same after a disturbed run as after an undisturbed one.

    Attributes:
        weights: The digest of the model's weights.
        versions: How many versions of the model there are.
        champion: The version that is champion.
        decisions: The ledger: what was decided, about which version.
        trainings: How many runs MLflow has, of trainings and with the ledger.
    """

    weights: str
    versions: int
    champion: int | None
    decisions: tuple[tuple[str, int], ...]
    trainings: int


def outcome_of(clone: Clone, output: str) -> Outcome:
    """Reads the outcome of a run that printed its document."""
    document = json.loads(output[output.index("{") :])
    model = snapshot.read(Project(clone.root), "vit")
    written = ledger.read(model)
    return Outcome(
        weights=document["model"]["digest"],
        versions=len(model.versions),
        champion=model.aliases.get("champion"),
        decisions=tuple((entry.action, entry.version) for entry in written.entries),
        trainings=_query(clone.root / "mlflow.db", "SELECT count(*) FROM runs")[0][0],
    )


def faults(
    clone: Clone,
    outcome: Outcome,
    expected: Outcome,
    database: Path,
    before: Collection[str],
    damaged: bool,
) -> list[str]:
    """What is wrong after a trial.

    Args:
        clone: Where it was.
        outcome: What it led to.
        expected: What it should have led to.
        database: The file of the Prefect server that its runs used.
        before: The ids of what went on there before the trial.
        damaged: Whether a file was damaged: a training that had begun before then has another run
            in MLflow, and what it had logged remains.
    """
    wrong = []
    for name, value in vars(expected).items():
        if damaged and name == "trainings":
            continue
        if getattr(outcome, name) != value:
            wrong.append(f"{name} is {getattr(outcome, name)}, not {value}")
    statuses = Counter(status for (status,) in _mlflow(clone, "SELECT status FROM runs"))
    if set(statuses) != {"FINISHED"} and not damaged:
        wrong.append(f"MLflow's runs are {dict(statuses)}")
    if doubled := _mlflow(
        clone,
        "SELECT key, step, count(*) FROM metrics GROUP BY run_uuid, key, step HAVING count(*) > 1",
    ):
        wrong.append(f"metrics are logged twice: {doubled[:3]}")
    deadline = monotonic() + WRITTEN_SECONDS
    while (states := going_on(database, before)) and monotonic() < deadline:
        sleep(0.2)
    if states:
        wrong.append(f"Prefect's runs go on: {dict(Counter(states.values()))}")
    project = Project(clone.root)
    leftovers = [str(left.path) for left in Store(project.store).leftovers()]
    leftovers += [str(path) for path in _unfinished(clone.root)]
    if leftovers:
        wrong.append(f"files are left: {leftovers}")
    return wrong


def damage_a_file(clone: Clone, which: float) -> None:
    """Changes a byte in the middle of a file of the store.

    Args:
        clone: With the store.
        which: Of all files, in order of their paths, as a fraction.
    """
    store = Store(Project(clone.root).store)
    files = sorted(
        path
        for step, key in store.entries()
        for path in store.folder(step, key).rglob("*")
        if path.is_file() and path.stat().st_size
    )
    if not files:
        return
    chosen = files[int(which * len(files))]
    content = bytearray(chosen.read_bytes())
    content[len(content) // 2] ^= 0xFF
    chosen.write_bytes(content)


def own_database(clone: Clone) -> Path:
    """The file of the Prefect server that a run in a clone starts."""
    return clone.root / ".retrain" / "prefect" / "prefect.db"


def going_on(database: Path, known: Collection[str] = ()) -> dict[str, str]:
    """The flow runs and task runs that go on in Prefect, by id.

    Args:
        database: The file of the server.
        known: The ids of those that do not count.

    Returns:
        For each what it is, and its state.
    """
    return {
        identity: f"{table} {state}"
        for table in ("flow_run", "task_run")
        for identity, state in _query(database, f"SELECT id, state_type FROM {table}")
        if state not in FINAL and identity not in known
    }


def _unfinished(root: Path) -> list[Path]:
    """Partial files, and the marks of processes, which all have ended."""
    patterns = (".*.partial", ".retrain/**/.*.partial", ".retrain/processes/*", ".*.lock")
    patterns += (".retrain/store/.holds/*", "mlruns/**/.*.partial")
    return [path for pattern in patterns for path in root.glob(pattern)]


def _mlflow(clone: Clone, text: str) -> list[tuple[Any, ...]]:
    return _query(clone.root / "mlflow.db", text)


def _query(database: Path, text: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return connection.execute(text).fetchall()


def _tracking_uri(clone: Clone) -> str:
    return f"sqlite:///{clone.root / 'mlflow.db'}"
