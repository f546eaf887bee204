"""Reads the model registry straight from MLflow's SQLite file, without MLflow.

Importing MLflow takes 1.3 to 2 s, more than everything else in a run that finds nothing changed.
MLflow does not guarantee the file's tables: a test compares what is read here with MLflow's own
answer, and where the tables differ, `read` returns None and MLflow is used.
"""

import os
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LEDGER_RUN = "retrain.ledger_run"  # the tag with the id of the ledger's run
SECONDS = 30.0  # to wait while another process writes


@dataclass(frozen=True)
class Version:
    """A version of a model, with those of MLflow's attributes that are used here."""

    name: str
    version: int
    run_id: str
    creation_timestamp: int
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Model:
    """A registered model, with those of MLflow's attributes that are used here.

    Attributes:
        name: The name of the model.
        aliases: The number of a version, by alias.
        tags: The tags of the model itself.
        versions: The versions by number; the one that was changed last comes first.
        ledger: The parameters of the run with its ledger.
        ledger_location: The URI of that run's artifacts; None without a ledger.
    """

    name: str
    aliases: Mapping[str, int]
    tags: Mapping[str, str]
    versions: Mapping[int, Version]
    ledger: Mapping[str, str] = field(default_factory=dict)
    ledger_location: str | None = None


def read(tracking_uri: str, name: str) -> Model | None:
    """Reads a registered model and all its versions in one transaction.

    Args:
        tracking_uri: The URI of MLflow's store.
        name: The name of the model. One that is not registered has no versions.

    Returns:
        None when the store is no SQLite file, or has other tables than expected.
    """
    path = tracking_uri.removeprefix("sqlite:///")
    if path == tracking_uri or "?" in path or os.environ.get("MLFLOW_WORKSPACE"):
        return None
    if not Path(path).exists():
        return Model(name, {}, {}, {})
    address = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, timeout=SECONDS, uri=True)) as database:
            return _read(database, name)
    except sqlite3.Error:
        return None


def _read(database: sqlite3.Connection, name: str) -> Model:
    def rows(columns: str, table: str, more: str = "") -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM {table} WHERE workspace = 'default' AND name = ? {more}"
        return database.execute(query, [name]).fetchall()

    database.execute("BEGIN")  # all queries see the same state
    tags: dict[int, dict[str, str]] = defaultdict(dict)
    for number, key, value in rows("version, key, value", "model_version_tags"):
        tags[number][key] = value
    tags_of_model = dict(rows("key, value", "registered_model_tags"))
    run = [tags_of_model.get(LEDGER_RUN)]
    params = database.execute("SELECT key, value FROM params WHERE run_uuid = ?", run)
    places = database.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", run)
    return Model(
        name=name,
        aliases=dict(rows("alias, version", "registered_model_aliases")),
        tags=tags_of_model,
        ledger=dict(params.fetchall()),
        ledger_location=next((place for (place,) in places), None),
        versions={
            number: Version(name, number, run_id, created, tags[number])
            for number, run_id, created in rows(
                "version, run_id, creation_time",
                "model_versions",
                "AND current_stage != 'Deleted_Internal' "
                "ORDER BY last_updated_time DESC, version DESC",
            )
        },
    )
