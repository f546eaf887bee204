"""What runs have led to, read from the files of a clone, and what must be true of it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from retrain.project import Project
from retrain.registry import ledger, snapshot
from retrain.store import Store

FINAL = ("COMPLETED", "CRASHED", "FAILED", "CANCELLED")
WRITTEN_SECONDS = 20.0  # for a server that is up to write what it was told of tasks
PARTIAL = (  # files that are being written, and marks of processes, which all have ended
    ".*.partial", ".*.lock", ".retrain/**/.*.partial", ".retrain/processes/*",
    ".retrain/store/.holds/*", "mlruns/**/.*.partial",
)  # fmt: skip
DOUBLED = "SELECT key, step FROM metrics GROUP BY run_uuid, key, step HAVING count(*) > 1"


def outcome_of(root: Path, document: dict[str, Any]) -> dict[str, Any]:
    """What must be the same after a disturbed run as after an undisturbed one.

    Args:
        root: The clone.
        document: Of its last run.

    Returns:
        The digest of the model's weights, the number of its versions, the one that is champion,
        what the ledger says was decided about which version, and the number of runs in MLflow.
    """
    model = snapshot.read(Project(root), "vit")
    return {
        "weights": document["model"]["digest"],
        "versions": len(model.versions),
        "champion": model.aliases.get("champion"),
        "decisions": [(entry.action, entry.version) for entry in ledger.read(model).entries],
        "trainings": query(root / "mlflow.db", "SELECT count(*) FROM runs"),
    }


def faults(root: Path, database: Path, damaged: bool) -> list[str]:
    """What is wrong in a clone after its last run, whatever that led to.

    Args:
        root: The clone.
        database: The file of the Prefect server that its runs used.
        damaged: Whether a file was damaged: a training that had begun before then has another run
            in MLflow, and what it had logged remains.
    """
    wrong = []
    statuses = {status for (status,) in query(root / "mlflow.db", "SELECT status FROM runs")}
    if statuses != {"FINISHED"} and not damaged:
        wrong.append(f"MLflow's runs are {statuses}")
    if doubled := query(root / "mlflow.db", DOUBLED):
        wrong.append(f"metrics are logged twice: {doubled[:3]}")
    deadline = monotonic() + WRITTEN_SECONDS
    while (states := _going_on(database)) and monotonic() < deadline:
        sleep(0.2)
    if states:
        wrong.append(f"Prefect's runs go on: {states}")
    left = [path for *_, path in Store(Project(root).store).leftovers()]
    left += [path for pattern in PARTIAL for path in root.glob(pattern)]
    if left:
        wrong.append(f"files are left: {[str(path) for path in left]}")
    return wrong


def damage_a_file(root: Path, which: float) -> None:
    """Changes a byte in the middle of a file of a clone's store.

    Args:
        root: The clone.
        which: Of all files, in order of their paths, as a fraction.
    """
    store = Store(Project(root).store)
    files = sorted(
        path
        for step, key in store.entries()
        for path in store.folder(step, key).rglob("*")
        if path.is_file() and path.stat().st_size
    )
    if files:
        file = files[int(which * len(files))]
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)


def query(database: Path, text: str) -> list[tuple[Any, ...]]:
    """The rows of an SQLite file."""
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        return connection.execute(text).fetchall()


def _going_on(database: Path) -> list[str]:
    """The flow runs and task runs that go on in Prefect, each with its state."""
    return [
        f"{table} {identity} {state}"
        for table in ("flow_run", "task_run")
        for identity, state in query(database, f"SELECT id, state_type FROM {table}")
        if state not in FINAL
    ]
