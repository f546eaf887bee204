"""Creates the SQLite databases of other tools completely or not at all.

MLflow and Prefect create theirs by running all their migrations, which takes seconds. A process
that is killed meanwhile, or a disk that is full, leaves a database with a part of the tables, on
which the migrations fail from then on. Here they run on a file aside, which is renamed. Their
models cannot replace the migrations: `create_all` fails for both.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rich.markup import escape

from retrain.errors import UsageError
from retrain.locks import locked
from retrain.project import Project
from retrain.runs import console

# Where the tools have their migrations: files whose names have the revision.
MIGRATIONS = {
    "mlflow": "store/db_migrations/versions",
    "prefect": "server/database/_migrations/versions/sqlite",
}


def of_prefect(project: Project) -> Path:
    """The database of the project's own Prefect servers."""
    return Path(os.environ.get("PREFECT_HOME") or project.state / "prefect") / "prefect.db"


def refuse_newer(path: Path, tool: str) -> None:
    """Refuses a database of a newer version of its tool, which itself says nothing that helps.

    Args:
        path: The database, which may be missing.
        tool: The name of the package.

    Raises:
        UsageError: No migration that is installed leads to the database's revision.
    """
    spec = find_spec(tool)
    if not path.exists() or spec is None or spec.origin is None:
        return
    with closing(sqlite3.connect(path)) as database, suppress(sqlite3.DatabaseError):
        query = "SELECT version_num FROM alembic_version"
        for (revision,) in database.execute(query).fetchall():
            if not any((Path(spec.origin).parent / MIGRATIONS[tool]).glob(f"*{revision}*")):
                raise UsageError(
                    f"{path} was made by a newer {tool} than {version(tool)}, which is installed "
                    "here: install the packages of that clone's requirements.lock (git pull && "
                    "make setup), or move the database away."
                )


@contextmanager
def created(path: Path, create: Callable[[Path], None]) -> Iterator[None]:
    """Creates a database if it is missing.

    Other processes wait for the end of the block of the one that creates it: the first rows, which
    a tool writes when it opens its database, must not be written twice.

    Args:
        path: The database.
        create: Creates all tables in the file of a path.
    """
    lock = path.with_name(f".{path.name}.lock")
    if path.exists() and not lock.exists():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock):
        try:
            if not path.exists():
                _create(path, create)
            yield
        finally:
            lock.unlink()  # a process that waits for it notices that


def _create(path: Path, create: Callable[[Path], None]) -> None:
    console.say(escape(f"Makes {path.name}, which is done once."))
    aside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
    aside.mkdir()
    try:
        database_file = aside / path.name
        create(database_file)
        with closing(sqlite3.connect(database_file)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all of it is in one file now
        database_file.rename(path)
    finally:
        shutil.rmtree(aside)
