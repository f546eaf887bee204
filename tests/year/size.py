"""How much a clone and its servers have."""

import sqlite3
from contextlib import closing
from pathlib import Path

from retrain.project import Project

DISK = (".retrain", ".dvc", "mlruns", "mlflow.db", "reports")  # what runs leave in a clone
ROWS = {"mlflow": ("runs", "model_versions"), "prefect": ("flow_run", "task_run", "log")}


def disk(root: Path) -> dict[str, int]:
    """The bytes of what runs leave in a clone; a file with several names counts once."""
    return {name: _bytes_of(root / name) for name in DISK}


def trainings(root: Path) -> int:
    """The bytes of the trainings in a clone's store, which stay with their versions."""
    return _bytes_of(Project(root).store / "train")


def _bytes_of(place: Path) -> int:
    files = [place, *place.rglob("*")]
    stats = [file.lstat() for file in files if file.is_file() and not file.is_symlink()]
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())


def rows(root: Path, prefect: Path) -> dict[str, int]:
    """The rows of the tables that grow with each run.

    Args:
        root: The clone.
        prefect: The database of its Prefect server.
    """
    counts = {}
    for name, database in (("mlflow", root / "mlflow.db"), ("prefect", prefect)):
        with closing(sqlite3.connect(database, timeout=60)) as connection:
            for table in ROWS[name]:
                [[count]] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
                counts[f"{name} {table}"] = count
    return counts
