"""How much a clone and its servers have."""

import sqlite3
from contextlib import closing
from pathlib import Path

DISK = (".retrain", ".dvc", "mlruns", "mlflow.db", "reports")  # what runs leave in a clone
ROWS = {"mlflow": ("runs", "model_versions"), "prefect": ("flow_run", "task_run", "log")}


def disk(root: Path) -> dict[str, int]:
    """The bytes of what runs leave in a clone; a file with several names counts once."""
    sizes = {}
    for name in DISK:
        files = [root / name, *(root / name).rglob("*")]
        stats = [file.lstat() for file in files if file.is_file() and not file.is_symlink()]
        sizes[name] = sum({stat.st_ino: stat.st_size for stat in stats}.values())
    return sizes


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
