"""Mends MLflow's database of a clone that was moved or renamed.

MLflow keeps absolute paths of a clone's `mlruns`: without this, a clone that was moved would look
for its models at the old place, or take those of another clone that lies there.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from retrain.locks import locked
from retrain.servers import databases

FILE = "mlflow.db"
# The columns of MLflow's database with places below those of experiments.
PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_models", "artifact_location"),
)


def mend(root: Path) -> Path | None:
    """Gives the experiments of a clone's own database the place where the clone is now.

    Only those whose artifacts are in the clone's `mlruns`: an experiment at a place of its own
    stays there.

    Args:
        root: The folder of the clone, which has `mlflow.db`.

    Returns:
        The copy of the database as it was; None if nothing had to be mended.
    """
    if not _stale(root):
        return None
    file, kept = root / FILE, root / f"{FILE}.before-move"
    with locked(root / f".{FILE}.moved.lock"), closing(sqlite3.connect(file)) as database, database:
        if not (stale := _stale(root)):
            return None
        databases.copy(file, kept)
        for table, column in PLACES:
            for old, new in stale.items():
                database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    [new, len(old) + 1, old, len(old) + 1, f"{old}/"],
                )
    return kept


def _stale(root: Path) -> dict[str, str]:
    """The new place of each experiment whose artifacts lie in the clone, by the old place."""
    with closing(sqlite3.connect(root / FILE)) as database:
        found = database.execute("SELECT name, artifact_location FROM experiments").fetchall()
    stale = {}
    for name, old in found:
        place = root / "mlruns" / name
        new, ending = place.as_uri(), f"/mlruns/{place.as_uri().rpartition('/')[2]}"
        if str(old).startswith("file:") and old.endswith(ending) and old != new and place.is_dir():
            stale[old] = new
    return stale
