"""Enters decisions in the ledger of a model, and carries them out.

Correctness rests on the ledger: an entry is written under the next number, which only one of
several machines can take. The alias `champion` follows it. What a kill leaves undone between the
entry and the alias is done by the next run that looks.
"""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from retrain import tracking
from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import ledger, model_card, snapshot, versions
from retrain.registry.ledger import Decision, Entry, Ledger, compact
from retrain.registry.versions import CHAMPION, REFERENCE, ModelVersion

if TYPE_CHECKING:
    from mlflow import MlflowClient


def read(project: Project, name: str) -> Ledger:
    """The ledger of a model; without entries before the first decision.

    Raises:
        ValueError: An entry was changed, so that it cannot be read.
    """
    return ledger.read(snapshot.read(project, name))


def champion(project: Project, name: str) -> ModelVersion | None:
    """The version in production; None before the first decision that made one.

    Raises:
        ValueError: Nothing may be decided about the model; the message is that of `fault`.
    """
    if problem := fault(read(project, name)):
        raise ValueError(problem)
    return versions.champion(project, name)


def fault(model_ledger: Ledger) -> str | None:
    """The message if no version is champion although the ledger names one; else None.

    Nothing may be decided about the model then, until a person has looked.
    """
    appointment = model_ledger.appointment
    if (
        CHAMPION in model_ledger.aliases
        or appointment is None
        or appointment in model_ledger.unfinished
    ):
        return None
    name = model_ledger.name
    return (
        f"{name} has no champion, but its ledger says version {appointment.version}: its alias was "
        "removed, or the version was deleted. Give the alias back, or go back to another version: "
        f"retrain rollback {name} --to VERSION --reason WHY"
    )


def is_applied(project: Project, name: str, decision: Decision) -> bool:
    """Whether a decision is in the ledger and was carried out; nothing is changed."""
    return is_entered(project, name, decision) and not read(project, name).unfinished


def is_entered(project: Project, name: str, decision: Decision) -> bool:
    """Whether a decision is in the ledger; a kill may have left it to be carried out.

    A decision after which somebody has moved the alias by hand does not count: it is made anew.
    """
    model_ledger = read(project, name)
    entry = model_ledger.latest(decision)
    if entry is None:
        return False
    is_champion = model_ledger.aliases.get(CHAMPION) == entry.version
    return not entry.appoints or entry in model_ledger.unfinished or is_champion


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
    run = snapshot.find_or_create(client, project, name)
    while not is_entered(project, name, decision):
        model_ledger = read(project, name)
        champion = model_ledger.aliases.get(CHAMPION)
        # By a rollback a person decides whatever the alias says.
        if decision.action != "rolled back" and (problem := fault(model_ledger)):
            raise ValueError(problem)
        # Entries of a run that was killed, or that is carrying them out now.
        if model_ledger.unfinished:
            _carry_out(project, client, model_ledger)
            continue
        if champion != decision.previous:
            raise ChampionChangedError(
                f"{name} version {version.version} is not {decision.action}: that was decided when "
                f"champion was version {decision.previous}, but champion is version {champion} by "
                "now. Run again."
            )
        if decision.reviews and decision.reviews != (
            model_ledger.waiting and model_ledger.waiting.number
        ):
            raise ValueError(
                f"{name} version {version.version} waits for approval no more. See: "
                f"retrain history {name}"
            )
        value = ledger.text_of(decision, name)
        if decision.document is not None:
            digest = ledger.digest_of_document(decision.document)
            client.log_text(run, compact(decision.document), f"decisions/{digest}.json")
        if write(client, run, model_ledger.next, value):
            break
    settle(project, name)
    applied = versions.get(project, name, version.version)
    assert applied is not None
    return applied


def settle(project: Project, name: str) -> None:
    """Carries out what is in a model's ledger and was not carried out, because of a kill.

    Raises:
        ValueError: The ledger cannot be read.
    """
    while (model_ledger := read(project, name)).unfinished:
        _carry_out(project, tracking.client(project), model_ledger)


def write(client: "MlflowClient", run: str, number: int, value: str) -> bool:
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

    try:
        client.log_param(run, ledger.key_of(number), value)
    except MlflowException:
        ledger_run = client.get_run(run)
        if ledger_run.info.lifecycle_stage == "deleted":
            raise ValueError(
                f"the ledger was deleted; bring it back with: mlflow runs restore --run-id {run}"
            ) from None
        if ledger.key_of(number) not in ledger_run.data.params:
            raise
        return bool(ledger_run.data.params[ledger.key_of(number)] == value)
    return True


def document_of(project: Project, model_ledger: Ledger, entry: Entry) -> dict[str, Any]:
    """All that was considered for an entry; empty if nothing was.

    Raises:
        ValueError: The document is gone, or was changed.
    """
    if not entry.document:
        return {}
    assert model_ledger.run
    place = f"decisions/{entry.document}.json"
    content = tracking.read_artifact(project, model_ledger.run, place)
    if content is None or ledger.sha256_of(content) != entry.document:
        problem = "is gone" if content is None else "was changed"
        raise ValueError(f"the document of entry {entry.number}, {place}, {problem}")
    values: dict[str, Any] = json.loads(content)
    return values


def considered(project: Project, model_ledger: Ledger, entry: Entry) -> dict[str, Any]:
    """All that was considered for an entry; empty also if its document is gone or was changed."""
    with suppress(ValueError):
        return document_of(project, model_ledger, entry)
    return {}


def _carry_out(project: Project, client: "MlflowClient", model_ledger: Ledger) -> None:
    """Does what the unfinished entries say; the alias comes last.

    Another process may be at it, too, and have a later champion by now. So one that finds them
    carried out leaves the alias alone, and each reads the ledger again until nothing is left.
    """
    name = model_ledger.name
    for entry in model_ledger.unfinished:
        if version := versions.get(project, name, entry.version):
            card = model_card.read(project, version)
            facts = considered(project, model_ledger, entry)
            text = model_card.description(version, entry, facts, card)
            number = str(entry.version)
            client.update_model_version(name, number, text)
            if tracking.is_active(project, version.run_id):
                tracking.set_at_once(client.set_tag, version.run_id, tracking.NOTE, text)
            tracking.set_at_once(
                client.set_model_version_tag, name, number, "retrain.verdict", entry.verdict
            )
    done = client.get_registered_model(name).tags.get(ledger.DONE, "0")
    if int(done) != model_ledger.done:
        return
    appointed = [entry for entry in model_ledger.unfinished if entry.appoints]
    if appointed:
        number = str(appointed[-1].version)
        for alias in (REFERENCE, CHAMPION) if appointed[-1].reference else (CHAMPION,):
            tracking.set_at_once(client.set_registered_model_alias, name, alias, number)
    number = str(model_ledger.entries[-1].number)
    tracking.set_at_once(client.set_registered_model_tag, name, ledger.DONE, number)
