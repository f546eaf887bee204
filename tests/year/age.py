"""Makes all that a clone and its servers have a week older.

The clock of the machine is left alone: what has an age is given an earlier time. The entries of
the ledger are not, because each has the digest of the one before it.
"""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.year.plan import WEEK

PREFECT: Mapping[str, Sequence[str]] = {
    "flow_run": ("created", "start_time", "end_time", "expected_start_time"),
    "task_run": ("created", "start_time", "end_time", "expected_start_time"),
    "artifact": ("created",),
    "log": ("created", "timestamp"),
    "events": ("occurred",),
    "event_resources": ("occurred",),
}
MLFLOW: Mapping[str, Sequence[str]] = {
    "runs": ("start_time", "end_time"),
    "metrics": ("timestamp",),
    "model_versions": ("creation_time", "last_updated_time"),
}


def make_older(root: Path, prefect: Path) -> None:
    """Makes a clone that nothing uses a week older.

    Args:
        root: The clone.
        prefect: The database of its Prefect server.
    """
    for file in root.glob(".retrain/production/*/answers/*.parquet"):
        _answers(file)
    seen = set()
    for folder in (".retrain", "reports", "mlruns"):
        for path in (root / folder).rglob("*"):
            status = path.lstat()
            if status.st_ino not in seen:  # a file of the store may have several names
                seen.add(status.st_ino)
                earlier = status.st_mtime - WEEK.total_seconds()
                os.utime(path, (earlier, earlier), follow_symlinks=False)
    _rows(root / "mlflow.db", MLFLOW, "{0} - " + str(round(WEEK.total_seconds() * 1000)))
    _rows(prefect, PREFECT, "a_week_before({0})")


def _answers(file: Path) -> None:
    """The answers say themselves when they were given."""
    table = pq.read_table(file)
    place = table.column_names.index("time")
    earlier = pc.subtract(table["time"], WEEK).cast(table.schema.field("time").type)
    pq.write_table(table.set_column(place, table.schema.field("time"), earlier), file)


def _rows(database: Path, tables: Mapping[str, Sequence[str]], value: str) -> None:
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        connection.create_function("a_week_before", 1, _a_week_before)
        for table, columns in tables.items():
            for column in columns:
                connection.execute(
                    f"UPDATE {table} SET {column} = {value.format(column)} "
                    f"WHERE {column} IS NOT NULL"
                )


def _a_week_before(time: str) -> str:
    return (datetime.fromisoformat(time) - WEEK).isoformat(" ", timespec="microseconds")
