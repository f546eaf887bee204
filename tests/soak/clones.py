"""Copies a clone of the project together with its databases."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.flows.conftest import Clone


def copy_clone(clone: Clone, root: Path) -> Clone:
    """Copies a clone that nothing uses; MLflow's database names the copy's folders then."""
    shutil.copytree(clone.root, root, symlinks=True)
    if (root / "mlflow.db").exists():
        _move(root / "mlflow.db", str(clone.root), str(root))
    return Clone(root, clone.api)


def _move(path: Path, old: str, new: str) -> None:
    """Replaces a folder's path in all texts of a database."""
    with closing(sqlite3.connect(path)) as database, database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for column in database.execute(f'PRAGMA table_info("{table}")').fetchall():
                name = column[1]
                database.execute(
                    f'UPDATE "{table}" SET "{name}" = replace("{name}", ?, ?) '
                    f"""WHERE typeof("{name}") = 'text' AND instr("{name}", ?)""",
                    (old, new, old),
                )
