"""Reads all that MLflow has of a registered model: its aliases, versions, and ledger.

If MLflow's store is an SQLite file, the file is read without MLflow: to import MLflow takes 1.3 to
2 s, more than everything else in a run that finds nothing changed. MLflow does not guarantee the
file's tables: a test compares what is read here with MLflow's own answer, and where the tables
differ, MLflow's client is used, as it is with a server.
"""

import os
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain import tracking
from retrain.project import Project

if TYPE_CHECKING:
    from mlflow import MlflowClient

LEDGER_RUN = "retrain.ledger_run"  # the tag of a registered model with the id of its ledger's run
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
    """

    name: str
    aliases: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[int, Version] = field(default_factory=dict)
    ledger: Mapping[str, str] = field(default_factory=dict)


def read(project: Project, name: str) -> Model:
    """Reads a model; one that is not registered has neither versions nor tags."""
    return from_file(project.tracking_uri, name) or from_client(tracking.client(project), name)


def names(project: Project) -> list[str]:
    """The names of all registered models; no database is made to find none."""
    file = _file(project.tracking_uri)
    if file and not file.exists():
        return []
    client, found, token = tracking.client(project), [], None
    while True:
        page = client.search_registered_models(page_token=token)
        found += [model.name for model in page]
        token = page.token
        if not token:
            return found


def from_client(client: "MlflowClient", name: str) -> Model:
    """Asks MLflow for a model."""
    from mlflow.exceptions import MlflowException

    try:
        model = client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return Model(name)
    listed = client.search_model_versions(f"name = '{name}'")
    run = client.get_run(model.tags[LEDGER_RUN]) if LEDGER_RUN in model.tags else None
    return Model(
        name=name,
        aliases={alias: int(number) for alias, number in model.aliases.items()},
        tags=model.tags,
        versions={
            int(each.version): Version(
                name, int(each.version), each.run_id, each.creation_timestamp, each.tags
            )
            for each in listed
        },
        ledger=run.data.params if run else {},
    )


def from_file(tracking_uri: str, name: str) -> Model | None:
    """Reads a model and all its versions in one transaction.

    Args:
        tracking_uri: The URI of MLflow's store.
        name: The name of the model.

    Returns:
        None when the store is no SQLite file, or has other tables than expected.
    """
    file = _file(tracking_uri)
    if file is None or os.environ.get("MLFLOW_WORKSPACE"):
        return None
    if not file.exists():
        return Model(name)
    address = f"{file.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, timeout=SECONDS, uri=True)) as database:
            return _read(database, name)
    except sqlite3.Error:
        return None


def _file(tracking_uri: str) -> Path | None:
    path = tracking_uri.removeprefix("sqlite:///")
    return None if path == tracking_uri or "?" in path else Path(path)


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
    return Model(
        name=name,
        aliases=dict(rows("alias, version", "registered_model_aliases")),
        tags=tags_of_model,
        ledger=dict(params.fetchall()),
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
