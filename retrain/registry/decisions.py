"""Enters decisions in the ledger of a model, and carries them out.

Correctness rests on the ledger: an entry is written under the next number, which only one of
several machines can take. The alias `champion` follows the last entry that appoints. What a kill
leaves undone between the two, or somebody has moved by hand, is set right by the next decision.
"""

import json
from contextlib import suppress
from hashlib import sha256
from typing import Any

from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import ledger, packages, tracking, versions
from retrain.registry.ledger import CHAMPION, REFERENCE, Decision, Entry, Ledger
from retrain.registry.versions import ModelVersion

read = tracking.read_model


def is_applied(project: Project, name: str, decision: Decision) -> bool:
    """Whether a decision is in the ledger and was carried out; nothing is changed."""
    model = read(project, name)
    return model.is_settled and model.latest(decision) is not None


def apply(project: Project, version: ModelVersion, decision: Decision) -> ModelVersion:
    """Enters a decision in the ledger, if it is not the last one there, and carries it out.

    A repeated call changes nothing; after a kill it does the rest.

    Returns:
        The version as it is afterwards.

    Raises:
        ChampionChangedError: The champion is another one than the decision says.
        ValueError: The decision does not fit into the ledger, or reviews what waits no more; or the
            ledger was deleted, or cannot be read.
    """
    client, name = tracking.client(project), version.name
    run, written = versions.ledger_run(project, name), 0
    model = settle(project, name)
    while not (written or model.latest(decision)):
        if model.champion != decision.previous:
            raise ChampionChangedError(
                f"{name} version {version.version} is not {decision.action}: that was decided when "
                f"champion was version {decision.previous}, but champion is version "
                f"{model.champion} by now. Run again."
            )
        if decision.reviews and decision.reviews != (model.waiting and model.waiting.number):
            raise ValueError(
                f"{name} version {version.version} waits for approval no more. See: "
                f"retrain history {name}"
            )
        value = ledger.text_of(decision, name)
        if decision.document is not None:
            text = ledger.compact(decision.document)
            client.log_text(run, text, place_of(ledger.digest_of_document(decision.document)))
        if write(client, run, model.next, value):
            written = model.next
        model = settle(project, name, written)
    return versions.of(project, model, version.version)


def write(client: Any, run: str, number: int, value: str) -> bool:
    """Enters a decision, unless the number is taken.

    MLflow never gives a parameter another value, and its database has one row per run and
    parameter, so of two machines that write the same number at once, one is refused.

    Args:
        client: A client of the registry.
        run: The ledger's run.
        number: One more than the number of the last entry.
        value: The text of the entry, as `ledger.text_of` gives it.

    Returns:
        Whether the entry has this number now. If not, another machine was faster.

    Raises:
        ValueError: The run was deleted.
    """
    from mlflow.exceptions import MlflowException

    key = f"{number:06d}"
    try:
        client.log_param(run, key, value)
    except MlflowException:
        ledger_run = client.get_run(run)
        if ledger_run.info.lifecycle_stage == "deleted":
            raise ValueError(
                f"the ledger was deleted; bring it back with: mlflow runs restore --run-id {run}"
            ) from None
        if key not in ledger_run.data.params:
            raise
        return bool(ledger_run.data.params[key] == value)
    return True


def settle(project: Project, name: str, written: int = 0) -> Ledger:
    """Carries out what is in a model's ledger and was not carried out; the alias comes last.

    Another process may be at it, too, so the ledger is read again until nothing is left.

    Args:
        project: The clone that the registry belongs to.
        name: The name of the model.
        written: The number of the entry that this process has just written; an alias that does not
            follow another one is told.

    Returns:
        The ledger as it is then.

    Raises:
        ValueError: The ledger cannot be read.
    """
    while not (model := read(project, name)).is_settled:
        client, appointment = tracking.client(project), model.appointment
        if model.untold:
            _describe(project, client, model, model.untold)
            continue
        assert appointment and model.fault
        if written != appointment.number:
            tracking.tell(f"{model.fault.partition(':')[0]}: it is set right.")
        number = str(appointment.version)
        for alias in (REFERENCE, CHAMPION) if appointment.reference else (CHAMPION,):
            tracking.set_at_once(client.set_registered_model_alias, name, alias, number)
    return model


def _describe(project: Project, client: Any, model: Ledger, entry: Entry) -> None:
    """Says what was decided on MLflow's pages of the version and of the run of its training."""
    number, sentence = str(entry.version), packages.sentence(entry)
    try:
        version = versions.of(project, model, entry.version)
    except ValueError as error:  # its record is gone, and the run of its training with it
        client.update_model_version(model.name, number, f"{sentence}\n\n{error}")
    else:
        facts, card = considered(project, model, entry), packages.read_card(project, version)
        text = packages.description(version, sentence, facts, card)
        client.update_model_version(model.name, number, text)
        _tell_run(project, client, version, entry)
    mark = (model.name, number, versions.VERDICT, entry.mark)
    tracking.set_at_once(client.set_model_version_tag, *mark)


def _tell_run(project: Project, client: Any, version: ModelVersion, entry: Entry) -> None:
    """Says what was decided on MLflow's page of the run of a version's training."""
    if tracking.is_active(project, version.run_id):
        tags = {
            tracking.NOTE: f"{version.title}. {packages.sentence(entry)}",
            versions.VERDICT: entry.verdict,
            "retrain.version": f"{version.name} {version.version}",
            "retrain.data": version.data or "unknown",
        }
        for key, value in tags.items():
            tracking.set_at_once(client.set_tag, version.run_id, key, value)


def place_of(document: str | None) -> str:
    """The place of the document of an entry among the artifacts of the ledger's run."""
    return f"decisions/{document}.json"


def document_of(project: Project, model: Ledger, entry: Entry) -> dict[str, Any]:
    """All that was considered for an entry; empty if nothing was.

    Raises:
        ValueError: The document is gone, or was changed.
    """
    if not entry.document:
        return {}
    assert model.run
    place = place_of(entry.document)
    content = tracking.read_artifact(project, model.run, place)
    if content is None or sha256(content).hexdigest() != entry.document:
        problem = "is gone" if content is None else "was changed"
        raise ValueError(f"the document of entry {entry.number}, {place}, {problem}")
    return dict(json.loads(content))


def considered(project: Project, model: Ledger, entry: Entry) -> dict[str, Any]:
    """All that was considered for an entry; empty also if its document is gone or was changed."""
    with suppress(ValueError):
        return document_of(project, model, entry)
    return {}
