"""Reads what MLflow keeps about a registered model: its aliases, its versions, and its ledger.

To import MLflow takes longer than all else in a run that finds nothing changed. So an SQLite file
is read as the database that it is, and only a server is asked through MLflow.
"""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.project import Project
from retrain.registry import tracking
from retrain.registry.ledger import Ledger, Row, parse
from retrain.servers import databases

if TYPE_CHECKING:
    from mlflow import MlflowClient

LEDGER_RUN = "retrain.ledger_run"  # the tag of a registered model with the id of its ledger's run
MODEL = "retrain.ledger"  # a tag of that run: the name of the model
MOST_VERSIONS, MOST_MODELS = 200_000, 1_000  # the most that MLflow gives at once
EXPERIMENT = "Decisions"  # the experiment of the ledgers' runs
OF_LEDGERS = "The decisions about the models of each workload. In the project: `retrain history`."


def read(project: Project, name: str) -> Ledger:
    """Reads a model; one that is not registered has neither versions nor entries.

    Raises:
        ValueError: An entry was changed, so that it cannot be read.
    """
    file = tracking.mended(project)
    if file is None:
        return _ask(project, name)
    if not file.exists():
        return Ledger(name)
    return _select(file, name)


def _select(file: Path, name: str) -> Ledger:
    """Reads a model from MLflow's tables, all of it as it was at one moment."""
    with closing(sqlite3.connect(file)) as database:

        def rows(query: str, value: str) -> list[Any]:
            return database.execute(query, [value]).fetchall()

        database.execute("BEGIN")
        aliases = rows("SELECT alias, version FROM registered_model_aliases WHERE name = ?", name)
        of_model = rows("SELECT key, value FROM registered_model_tags WHERE name = ?", name)
        run = dict(of_model).get(LEDGER_RUN)
        entries = rows("SELECT key, value FROM params WHERE run_uuid = ?", run or "")
        tags: dict[int, dict[str, str]] = {}
        query = "SELECT version, key, value FROM model_version_tags WHERE name = ?"
        for number, key, value in rows(query, name):
            tags.setdefault(number, {})[key] = value
        query = (
            "SELECT version, run_id, source, creation_time FROM model_versions "
            "WHERE name = ? AND current_stage != 'Deleted_Internal'"
        )
        versions = {
            number: Row(run_id or "", source, created, tags.get(number, {}))
            for number, run_id, source, created in rows(query, name)
        }
    return Ledger(name, parse(name, dict(entries)), run, dict(aliases), versions)


def _ask(project: Project, name: str) -> Ledger:
    """Asks MLflow for a model, for its ledger last."""
    client = tracking.client(project)
    model = find_model(client, name)
    if model is None:
        return Ledger(name)
    versions = {
        int(found.version): Row(
            found.run_id or "", found.source, found.creation_timestamp, found.tags
        )
        for found in client.search_model_versions(f"name = '{name}'", MOST_VERSIONS)
    }
    aliases = {alias: int(number) for alias, number in model.aliases.items()}
    run_id = model.tags.get(LEDGER_RUN)
    run = tracking.find_run(project, run_id) if run_id else None
    return Ledger(name, parse(name, run.data.params if run else {}), run_id, aliases, versions)


def names(project: Project) -> list[str]:
    """The names of all registered models; no database is made to find none."""
    file = databases.of_mlflow(project)
    if file and not file.exists():
        return []
    return [
        model.name
        for model in tracking.client(project).search_registered_models(max_results=MOST_MODELS)
    ]


def find_or_create(client: "MlflowClient", project: Project, name: str) -> str:
    """Finds the run of a model's ledger; the first time, creates it and the registered model.

    The registered model is created with the tag that names the run. Only one of several machines
    can do that; the others take its run.

    Returns:
        The id of the run.
    """
    from mlflow.exceptions import MlflowException

    model = find_model(client, name)
    if model and LEDGER_RUN in model.tags:
        return str(model.tags[LEDGER_RUN])
    experiment = tracking.experiment(client, project, EXPERIMENT, OF_LEDGERS)
    run = str(client.create_run(experiment, None, {MODEL: name}, name).info.run_id)
    client.update_run(run, "FINISHED")  # else it would seem to go on
    if model:  # made by a person
        client.set_registered_model_tag(name, LEDGER_RUN, run)
        return run
    about = (
        f"The models of the workload {name}. The alias `champion` names the one in production; "
        "only Retrain moves it. How each came about, and why it was promoted or not: "
        f"`retrain history {name}`, `retrain lineage {name}@NUMBER --card`."
    )
    with suppress(MlflowException):  # another machine was faster
        client.create_registered_model(name, {LEDGER_RUN: run}, about)
    taken = str(client.get_registered_model(name).tags[LEDGER_RUN])
    if taken != run:
        client.delete_run(run)
    return taken


def find_model(client: "MlflowClient", name: str) -> Any:
    """A registered model as MLflow has it; None if there is none."""
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
