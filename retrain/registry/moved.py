"""Mends MLflow's database of a clone that was moved or renamed.

MLflow keeps absolute paths of a clone's `mlruns`: without this, a clone that was moved would look
for its models at the old place, or take those of another clone that lies there.
"""

import sqlite3
from contextlib import closing

from retrain import tracking
from retrain.locks import locked
from retrain.project import Project

# The columns of MLflow's database with places below those of experiments.
PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_models", "artifact_location"),
)


def mend(project: Project) -> None:
    """Gives the experiments of a clone's own database the place where the clone is now.

    Only those whose artifacts are in the clone's `mlruns`: an experiment at a place of its own
    stays there. A copy of the database is kept.
    """
    file = tracking.database_of(project)
    if file != project.root / "mlflow.db" or not (stale := _stale(project)):
        return
    with locked(file.with_name(f".{file.name}.moved.lock")):
        if not (stale := _stale(project)):
            return
        kept = file.with_name(f"{file.name}.before-move")
        with closing(sqlite3.connect(file)) as database, database:
            with closing(sqlite3.connect(kept)) as copy:
                database.backup(copy)
            for table, column in PLACES:
                for old, new in stale.items():
                    database.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                        f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                        [new, len(old) + 1, old, len(old) + 1, f"{old}/"],
                    )
    tracking.tell(
        f"The clone was moved: {file.name} has its new place now, and {kept.name} is as it was."
    )


def _stale(project: Project) -> dict[str, str]:
    """The new place of each experiment whose artifacts lie in the clone, by the old place."""
    with closing(sqlite3.connect(project.root / "mlflow.db")) as database:
        found = database.execute("SELECT name, artifact_location FROM experiments").fetchall()
    stale = {}
    for name, old in found:
        place = project.root / "mlruns" / name
        new, ending = place.as_uri(), f"/mlruns/{place.as_uri().rpartition('/')[2]}"
        if str(old).startswith("file:") and old.endswith(ending) and old != new and place.is_dir():
            stale[old] = new
    return stale
