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
from contextlib import closing, contextmanager
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
# What to do about one that is damaged.
MEND = {
    "mlflow": "bring it back from a copy. What is in production is known only there.",
    "prefect": "delete it. It has only what Prefect shows of earlier runs.",
}


def of_mlflow(project: Project) -> Path | None:
    """The SQLite file of MLflow's store; None for another kind of store."""
    path = project.tracking_uri.removeprefix("sqlite:///")
    return None if path == project.tracking_uri or "?" in path else Path(path)


def of_prefect(project: Project) -> Path:
    """The database of the project's own Prefect servers, wherever the user has others."""
    return project.state / "prefect" / "prefect.db"


def check(path: Path, tool: str) -> None:
    """Refuses a database of another release of its tool, which itself says nothing that helps.

    Args:
        path: The database, which may be missing.
        tool: The name of the package.

    Raises:
        UsageError: It was made by a newer release, or by an earlier one and has to be migrated; or
            it is damaged.
    """
    if not path.exists():
        return
    with opened(path, tool) as database:
        found = database.execute("SELECT version_num FROM alembic_version").fetchone()
        if not found:
            raise sqlite3.DatabaseError("it is empty")
    (revision,) = found
    known, newest = _migrations(tool)
    if revision not in known:
        raise UsageError(
            f"{path} was made by a newer {tool} than {version(tool)}, which is installed "
            "here: install the packages of that clone's requirements.lock (git pull && "
            "make setup)."
        )
    if revision != newest:
        raise UsageError(
            f"{path} was made by an earlier {tool} than {version(tool)}, which is installed here. "
            f"Keep a copy, and migrate it: make down && {MIGRATE[tool].format(path=path)}"
        )


@contextmanager
def opened(path: Path, tool: str) -> Iterator[sqlite3.Connection]:
    """Opens a database of a tool to read it.

    Raises:
        UsageError: It is damaged, empty, or no database.
        sqlite3.OperationalError: Another process has it for longer than a few seconds.
    """
    try:
        with closing(sqlite3.connect(path)) as database:
            yield database
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise
        raise UsageError(
            f"{path} is damaged, or no database of {tool} ({error}): {MEND[tool]}"
        ) from error


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
    command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
    subprocess.run(command, env=environment(path), check=True, stdout=subprocess.DEVNULL)


def environment(path: Path) -> dict[str, str]:
    """The environment of a program that uses a database of Prefect, and no other of the user's."""
    url = f"sqlite+aiosqlite:///{path}"
    own = {"PREFECT_HOME": str(path.parent), "PREFECT_SERVER_DATABASE_CONNECTION_URL": url}
    return os.environ | own


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
    with opened(root / MLFLOW, "mlflow") as database:
        found = database.execute("SELECT name, artifact_location FROM experiments").fetchall()
    stale = {}
    for name, old in found:
        place = root / "mlruns" / name
        new, ending = place.as_uri(), f"/mlruns/{place.as_uri().rpartition('/')[2]}"
        if str(old).startswith("file:") and old.endswith(ending) and old != new and place.is_dir():
            stale[old] = new
    return stale
