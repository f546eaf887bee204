"""The MLflow run that holds the ledger of a model.

MLflow never gives a parameter another value, and its database has one row per run and parameter, so
of two machines that write the same number at once, one is refused. Which run is the ledger, a tag
of the registered model says.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from retrain import tracking
from retrain.project import Project
from retrain.registry.ledger import (
    Entry,
    Ledger,
    compact,
    digest_of_document,
    key_of,
    sha256_of,
)
from retrain.registry.snapshot import LEDGER_RUN

if TYPE_CHECKING:
    from mlflow import MlflowClient

MODEL = "retrain.ledger"  # a tag of the run: the name of the model
NAME = "ledger"  # of the run
DOCUMENTS = "decisions"  # the folder of the run's artifacts


def find_or_create(client: "MlflowClient", project: Project, name: str) -> str:
    """Finds the run of a model's ledger; the first time, creates it and the registered model.

    The registered model is created with the tag that names the run. Only one of several machines
    can do that; the others take its run.

    Returns:
        The id of the run.
    """
    from mlflow.exceptions import MlflowException

    try:
        tags = client.get_registered_model(name).tags
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        run = _create(client, project, name)
        try:
            client.create_registered_model(name, {LEDGER_RUN: run})
            return run
        except MlflowException as later:
            if later.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        tags = client.get_registered_model(name).tags
        if tags.get(LEDGER_RUN) != run:
            client.delete_run(run)
    if LEDGER_RUN not in tags:  # made by a person
        run = _create(client, project, name)
        client.set_registered_model_tag(name, LEDGER_RUN, run)
        return run
    return str(tags[LEDGER_RUN])


def _create(client: "MlflowClient", project: Project, name: str) -> str:
    """Creates the run of a ledger, or takes one that a process left when it was killed here."""
    experiment = tracking.experiment(client, project, name)
    found = client.search_runs([experiment], f"tags.`{MODEL}` = '{name}'")
    empty = [run for run in found if not run.data.params]
    run = empty[0] if empty else client.create_run(experiment, tags={MODEL: name}, run_name=NAME)
    client.update_run(run.info.run_id, "FINISHED")  # else it would seem to go on
    return str(run.info.run_id)


def write(client: "MlflowClient", run: str, number: int, value: str) -> bool:
    """Enters a decision, unless the number is taken.

    Args:
        client: A client of the registry.
        run: The ledger's run.
        number: One more than the number of the last entry.
        value: As `ledger.value_of` gives it.

    Returns:
        Whether the entry has this number now. If not, another machine was faster.

    Raises:
        ValueError: The run was deleted.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.log_param(run, key_of(number), value)
    except MlflowException:
        found = client.get_run(run)
        if found.info.lifecycle_stage == "deleted":
            raise ValueError(deleted(run)) from None
        if key_of(number) not in found.data.params:
            raise
        return bool(found.data.params[key_of(number)] == value)
    return True


def deleted(run: str) -> str:
    """What is said when the run was deleted, but not for good."""
    return f"the ledger was deleted; bring it back with: mlflow runs restore --run-id {run}"


def upload(client: "MlflowClient", run: str, document: Mapping[str, Any] | None) -> None:
    """Puts the document of a decision below the ledger's run, under its digest."""
    if document is not None:
        client.log_text(run, compact(document), place(digest_of_document(document)))


def document(project: Project, written: Ledger, digest: str) -> bytes | None:
    """The document of a decision, as it was written (JSON); None if it is gone."""
    assert written.run
    return tracking.read_artifact(project, written.run, place(digest))


def considered(project: Project, written: Ledger, entry: Entry) -> dict[str, Any] | None:
    """All that was considered for an entry; None if nothing, or if that is gone or was changed."""
    content = document(project, written, entry.document) if entry.document else None
    if content is None or sha256_of(content.decode()) != entry.document:
        return None
    values: dict[str, Any] = json.loads(content)
    return values


def place(digest: str | None) -> str:
    """The path of a document among the run's artifacts."""
    return f"{DOCUMENTS}/{digest}.json"
