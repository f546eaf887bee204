"""Creates the SQLite databases of other tools completely or not at all.

MLflow and Prefect create theirs by running all their migrations, which takes seconds. A process
that is killed meanwhile, or a disk that is full, leaves a database with a part of the tables, on
which the migrations fail from then on. Here they run on a file aside, which is renamed. Their
models cannot replace the migrations: `create_all` fails for both.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from retrain.locks import locked

COMPLETE = 1  # SQLite's `user_version` of a database that was created here; neither tool uses it
LOCK_SECONDS = 30.0  # to wait for another process that writes
_JOURNALS = ("-journal", "-wal", "-shm")


@contextmanager
def created(path: Path, tables: Sequence[str], create: Callable[[Path], None]) -> Iterator[None]:
    """Creates a database if it is missing, and replaces one that is not complete.

    The block is run by one process at a time until the database has its first row.

    Args:
        path: The database.
        tables: The tables that get rows only after the database is complete. A database with a row
            in one of them is never replaced.
        create: Creates all tables in the file of a path.

    Raises:
        sqlite3.DatabaseError: The file is no SQLite database; it is left as it is.
    """
    if _has_rows(path, tables):
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with locked(lock):
        try:
            if not _is_complete(path) and not _has_rows(path, tables):
                _replace(path, create)
            yield
        finally:
            lock.unlink()  # a process that waits for it notices that


def _has_rows(path: Path, tables: Sequence[str]) -> bool:
    if not path.exists():
        return False
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as database:
        found = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        return any(
            database.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone()
            for table in tables
            if table in found
        )


def _is_complete(path: Path) -> bool:
    if not path.exists():
        return False
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as database:
        version: int = database.execute("PRAGMA user_version").fetchone()[0]
        return version == COMPLETE


def _replace(path: Path, create: Callable[[Path], None]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    _remove(partial)
    try:
        create(partial)
        with closing(sqlite3.connect(partial)) as database:
            database.execute(f"PRAGMA user_version = {COMPLETE}")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all of it is in one file now
        _remove(path)  # with its journals, which would be applied to the new file
        partial.rename(path)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    for end in ("", *_JOURNALS):
        path.with_name(path.name + end).unlink(missing_ok=True)
