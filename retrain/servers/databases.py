"""Creates and mends the SQLite databases of other tools completely or not at all.

MLflow and Prefect create theirs by running all their migrations, which takes seconds. A process
that is killed meanwhile, or a disk that is full, leaves a database with a part of the tables, on
which the migrations fail from then on. Here they run on a file aside, which is renamed. Their
models cannot replace the migrations: `create_all` fails for both.

MLflow keeps absolute paths of a clone's `mlruns`: a clone that was moved or renamed would look for
its models at the old place, or take those of another clone that lies there.
"""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
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
MLFLOW = "mlflow.db"
# The columns of MLflow's database with places below those of experiments.
PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_models", "artifact_location"),
)
# What migrates a database of an earlier release, as `make upgrade` does.
MIGRATE = {
    "mlflow": '.venv/bin/mlflow db upgrade "sqlite:///{path}"',
    "prefect": 'PREFECT_HOME="{path.parent}" .venv/bin/prefect server database upgrade -y',
}


def of_mlflow(project: Project) -> Path | None:
    """The SQLite file of MLflow's store; None for another kind of store."""
    path = project.tracking_uri.removeprefix("sqlite:///")
    return None if path == project.tracking_uri or "?" in path else Path(path)


def of_prefect(project: Project) -> Path:
    """The database of the project's own Prefect servers."""
    return Path(os.environ.get("PREFECT_HOME") or project.state / "prefect") / "prefect.db"


def check(path: Path, tool: str) -> None:
    """Refuses a database of another release of its tool, which itself says nothing that helps.

    Args:
        path: The database, which may be missing.
        tool: The name of the package.

    Raises:
        UsageError: It was made by a newer release, or by an earlier one and has to be migrated.
    """
    revision = _revision(path)
    known, newest = _migrations(tool)
    if revision and revision not in known:
        raise UsageError(
            f"{path} was made by a newer {tool} than {version(tool)}, which is installed "
            "here: install the packages of that clone's requirements.lock (git pull && "
            "make setup)."
        )
    if revision not in (None, newest):
        raise UsageError(
            f"{path} was made by an earlier {tool} than {version(tool)}, which is installed here. "
            f"Keep a copy, and migrate it: make down && {MIGRATE[tool].format(path=path)}"
        )


def _revision(path: Path) -> str | None:
    """The last migration of a database; None if it is missing, or another kind of file."""
    if path.exists():
        with closing(sqlite3.connect(path)) as database, suppress(sqlite3.DatabaseError):
            for (revision,) in database.execute("SELECT version_num FROM alembic_version"):
                return str(revision)
    return None


@cache
def _migrations(tool: str) -> tuple[set[str], str]:
    """The migrations of a tool that are installed, and the newest of them, by their revisions."""
    spec = find_spec(tool)
    assert spec and spec.origin
    files = (Path(spec.origin).parent / MIGRATIONS[tool]).glob("*.py")
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    known, earlier = (
        set(re.findall(rf"""^{name}\b[^=]*= ["'](\w+)""", text, re.MULTILINE))
        for name in ("revision", "down_revision")
    )
    [newest] = known - earlier
    return known, newest


def create_mlflow(path: Path) -> None:
    """Creates MLflow's database."""
    from mlflow.db import upgrade

    upgrade.callback(f"sqlite:///{path}")


def create_prefect(path: Path) -> None:
    """Creates Prefect's database."""
    url = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{path}"}
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
    subprocess.run(command, env=os.environ | url, check=True, stdout=subprocess.DEVNULL)


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


def mend_moved(root: Path) -> Path | None:
    """Gives the experiments of a clone's own database the place where the clone is now.

    Only those whose artifacts are in the clone's `mlruns`: an experiment at a place of its own
    stays there.

    Args:
        root: The folder of the clone, which may have no `mlflow.db`.

    Returns:
        The copy of the database as it was; None if nothing had to be mended.
    """
    if not (root / MLFLOW).exists() or not _stale(root):
        return None
    file, kept = root / MLFLOW, root / f"{MLFLOW}.before-move"
    with (
        locked(root / f".{MLFLOW}.moved.lock"),
        closing(sqlite3.connect(file)) as database,
        database,
    ):
        if not (stale := _stale(root)):
            return None
        with closing(sqlite3.connect(kept)) as other:
            database.backup(other)
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
    with closing(sqlite3.connect(root / MLFLOW)) as database:
        found = database.execute("SELECT name, artifact_location FROM experiments").fetchall()
    stale = {}
    for name, old in found:
        place = root / "mlruns" / name
        new, ending = place.as_uri(), f"/mlruns/{place.as_uri().rpartition('/')[2]}"
        if str(old).startswith("file:") and old.endswith(ending) and old != new and place.is_dir():
            stale[old] = new
    return stale
