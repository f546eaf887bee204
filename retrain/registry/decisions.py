"""Enters decisions in the ledger of a model, and carries them out.

Correctness rests on the ledger: an entry is written under the next number, which only one of
several machines can take. The alias `champion` follows it. What a kill leaves undone between the
entry and the alias is done by the next run that looks.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from retrain import tracking
from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import ledger, model_card, sqlite_reader, versions
from retrain.registry.ledger import Decision, Entry, Ledger
from retrain.registry.versions import CHAMPION, REFERENCE, ModelVersion

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel


def read(project: Project, name: str) -> Ledger:
    """The ledger of a model; without entries before the first decision.

    Raises:
        ValueError: It was changed, so that it cannot be read.
    """
    if stored := sqlite_reader.read(project.tracking_uri, name):
        return ledger.read(name, stored.tags, stored.ledger, stored.ledger_location)
    client = tracking.client(project)
    model = versions.registered(client, name)
    return _read(client, model) if model else Ledger()


def is_applied(project: Project, version: ModelVersion, decision: Decision) -> bool:
    """Whether a decision is in the ledger and was carried out; nothing is changed."""
    written = read(project, version.name)
    champion = version.version if CHAMPION in version.aliases else None
    return _is_entered(written, decision, champion) and not written.unfinished


def is_entered(project: Project, version: ModelVersion, decision: Decision) -> bool:
    """Whether a decision is in the ledger; a kill may have left it to be carried out."""
    champion = version.version if CHAMPION in version.aliases else None
    return _is_entered(read(project, version.name), decision, champion)


def apply(project: Project, version: ModelVersion, decision: Decision) -> ModelVersion:
    """Enters a decision in the ledger, if it is not the last one there, and carries it out.

    A repeated call changes nothing; after a kill it does the rest.

    Returns:
        The version as it is afterwards.

    Raises:
        ChampionChangedError: The champion is another one than the decision says.
        ValueError: The decision does not fit into the ledger, or reviews what waits no more; or the
            ledger was deleted.
    """
    client, name = tracking.client(project), version.name
    run = ledger.open_run(client, project, name)
    while True:
        model = versions.registered(client, name)
        assert model is not None
        written = _read(client, model)
        champion = versions.champion_of(model)
        if _is_entered(written, decision, champion):
            break
        if written.unfinished:  # of a run that was killed, or is at it
            _carry_out(project, client, name, written)
            continue
        if champion != decision.previous:
            raise ChampionChangedError(
                f"{name} version {version.version} is not {decision.action}: that was decided when "
                f"champion was version {decision.previous}, but champion is version {champion} by "
                "now. Run again."
            )
        if decision.reviews and decision.reviews != (written.waiting and written.waiting.number):
            raise ValueError(no_longer_waits(name, version.version))
        value = ledger.value_of(decision, written.head, ledger.now(), name)
        ledger.upload(client, run, decision.document)
        if ledger.write(client, run, written.next, value):
            break
    settle(project, name)
    now = versions.get(project, name, version.version)
    assert now is not None
    return now


def no_longer_waits(name: str, number: int) -> str:
    """What is said of a version that waited for approval until something else was decided."""
    return f"{name} version {number} waits for approval no more. See: retrain history {name}"


def settle(project: Project, name: str) -> None:
    """Carries out what is in a model's ledger and was not carried out, because of a kill."""
    while (written := read(project, name)).unfinished:
        _carry_out(project, tracking.client(project), name, written)


def document(project: Project, written: Ledger, digest: str) -> bytes | None:
    """The document of a decision, as it was written (JSON); None if it is gone."""
    name = f"{ledger.DOCUMENTS}/{digest}.json"
    assert written.run and written.location
    if here := tracking.local_path(written.location):
        return (here / name).read_bytes() if (here / name).is_file() else None
    with TemporaryDirectory() as folder:
        downloaded = tracking.download_artifact(project, written.run, name, Path(folder))
        return downloaded.read_bytes() if downloaded else None


def rules(project: Project, written: Ledger, entry: Entry) -> list[Mapping[str, Any]]:
    """The rules of the gate that an entry was decided by; none if its document is gone."""
    if entry.rules is not None:
        return list(entry.rules)
    found = document(project, written, entry.document) if entry.document else None
    return list(json.loads(found).get("rules", ())) if found else []


def _read(client: "MlflowClient", model: "RegisteredModel") -> Ledger:
    if not (run := model.tags.get(ledger.RUN)):
        return ledger.read(model.name, model.tags, {}, None)
    found = client.get_run(run)
    return ledger.read(model.name, model.tags, found.data.params, found.info.artifact_uri)


def _is_entered(written: Ledger, decision: Decision, champion: int | None) -> bool:
    """Whether a decision is in the ledger, so that it only may be left to carry it out.

    If somebody has moved the alias by hand since, it is made anew.
    """
    entry = written.latest(decision)
    if entry is None:
        return False
    return not entry.appoints or entry in written.unfinished or champion == entry.version


def _carry_out(project: Project, client: "MlflowClient", name: str, written: Ledger) -> None:
    """Does what the unfinished entries say; the alias comes last.

    Another process may be at it, too. One that is slow may set the alias to an earlier champion:
    so each reads the ledger again until nothing is left.
    """
    *_, last = written.unfinished
    for entry in written.unfinished:
        if version := versions.get(project, name, entry.version):
            card = model_card.read(project, version)
            text = model_card.description(version, entry, rules(project, written, entry), card)
            number = str(entry.version)
            client.update_model_version(name, number, text)
            _set(client.set_model_version_tag, name, number, "retrain.verdict", entry.verdict)
    appointed = [entry for entry in written.unfinished if entry.appoints]
    for best in [entry for entry in appointed if entry.reference][-1:]:
        _set(client.set_registered_model_alias, name, REFERENCE, str(best.version))
    if appointed:
        _set(client.set_registered_model_alias, name, CHAMPION, str(appointed[-1].version))
    _set(client.set_registered_model_tag, name, ledger.DONE, f"{last.number} {last.digest}")


def _set(function: Callable[..., None], *arguments: str) -> None:
    """Sets what another process may set for the first time at the same moment.

    The database then refuses one of the two, which finds it there when it tries again.
    """
    from mlflow.exceptions import MlflowException

    try:
        function(*arguments)
    except MlflowException:
        function(*arguments)
