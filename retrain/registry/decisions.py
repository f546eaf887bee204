"""Enters decisions in the ledger of a model, and carries them out.

Correctness rests on the ledger: an entry is written under the next number, which only one of
several machines can take. The alias `champion` follows it. What a kill leaves undone between the
entry and the alias is done by the next run that looks, in the clone that wrote the entry; or in
any, if the entry is signed.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from retrain import tracking
from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import heads, ledger, model_card, sqlite_reader, trust, versions
from retrain.registry.heads import Head
from retrain.registry.ledger import Decision, Entry, Ledger
from retrain.registry.versions import CHAMPION, REFERENCE, ModelVersion

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel

PATIENCE = 30.0  # seconds in which another machine may carry out what it has entered
WAIT = 0.2  # seconds between two looks


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


def champion(project: Project, name: str) -> ModelVersion | None:
    """The version in production; None before the first decision that made one.

    Waits for another machine that is about to carry a decision out.

    Raises:
        ValueError: As `fault` says.
    """
    deadline = monotonic() + PATIENCE
    while disputed(project, name) and monotonic() < deadline:
        sleep(WAIT)
    if what := fault(project, name):
        raise ValueError(what)
    return versions.champion(project, name)


def fault(project: Project, name: str) -> str | None:
    """Why nothing may be decided about a model until a person has looked; None if nothing is wrong.

    Its ledger cannot be trusted; it has a decision that only another clone may carry out; or it
    says that there is a champion, and there is none.
    """
    head = heads.read(project, name)
    written = read(project, name)
    if what := _distrust(project, name, head, written):
        return what
    if stranger := trust.stranger(project, name, head, written):
        return f"The ledger of {name}: {left_over(name, stranger)}"
    there = versions.champion(project, name)
    return _missing(project, name, written, there.version if there else None)


def _distrust(
    project: Project, name: str, head: Head | None, written: Ledger, *, signed: bool = True
) -> str | None:
    """Why nothing may be entered after what a ledger has, and what to do; None if it may.

    Args:
        project: The clone.
        name: The name of the model.
        head: Of the ledger, as the project has it.
        written: The ledger.
        signed: Whether that an entry is not signed, where that is demanded, is a reason.
    """
    if what := next(trust.faults(project, name, head, written), None):
        return f"The ledger of {name}: {what}. Nothing is decided until that is mended."
    if signed and (entry := trust.unsigned(project, name, head, written)):
        return f"The ledger of {name}: {unsigned(name, entry)}"
    return None


def _missing(project: Project, name: str, written: Ledger, champion: int | None) -> str | None:
    """What is said if no version is champion although the ledger says so."""
    last = written.appointment
    if champion is not None or last is None or last in written.unfinished:
        return None
    command = f"retrain rollback {name} --to"
    if versions.get(project, name, last.version):
        return (
            f"{name} has no champion, but its ledger says version {last.version}: the alias was "
            f"removed. Give it back: {command} {last.version} --reason WHY"
        )
    known = sorted({entry.version for entry in written.entries if entry.appoints})
    left = [str(number) for number in known if versions.get(project, name, number)]
    gone = f"{name} version {last.version}, the champion by the ledger, was deleted"
    if left:
        return f"{gone}. Go back to another ({', '.join(left)}): {command} VERSION --reason WHY"
    return f"{gone}, and so was every champion before it: restore MLflow's database from a backup."


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
            ledger was deleted, cannot be trusted, has a decision of another machine that was not
            carried out, or cannot be signed.
    """
    client, name = tracking.client(project), version.name
    run = ledger.open_run(client, project, name)
    settles = decision.action == "rolled back"  # a person does, whatever the ledger says
    deadline = monotonic() + PATIENCE
    while True:
        head = heads.read(project, name)
        model = versions.registered(client, name)
        assert model is not None
        written = _read(client, model)
        champion = versions.champion_of(model)
        if _is_entered(written, decision, champion):
            break
        stranger = trust.stranger(project, name, head, written)
        if what := _distrust(project, name, head, written, signed=not settles):
            raise ValueError(what)
        if not settles:
            if stranger and monotonic() < deadline:
                sleep(WAIT)
                continue
            if stranger:
                raise ValueError(f"The ledger of {name}: {left_over(name, stranger)}")
            if what := _missing(project, name, written, champion):
                raise ValueError(what)
        if written.unfinished and not stranger:  # of a run that was killed, or is at it
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
        value = ledger.value_of(project, decision, name, written)
        ledger.upload(client, run, decision.document)
        heads.note(project, name, run, ledger.sha256_of(value))
        if ledger.write(client, run, written.next, value):
            break
    settle(project, name)
    now = versions.get(project, name, version.version)
    assert now is not None
    return now


def no_longer_waits(name: str, number: int) -> str:
    """What is said of a version that waited for approval until something else was decided."""
    return f"{name} version {number} waits for approval no more. See: retrain history {name}"


def disputed(project: Project, name: str) -> Entry | None:
    """An entry that only a person can accept or set aside; None if there is none.

    It is not signed, although that is demanded; or this clone may not carry it out.
    """
    head = heads.read(project, name)
    written = read(project, name)
    found = trust.unsigned(project, name, head, written)
    return found or trust.stranger(project, name, head, written)


def unsigned(name: str, entry: Entry) -> str:
    """What is said of an entry that is not signed, where that is demanded."""
    return (
        f"{trust.described(entry)} carries no signature of an allowed signer. It may be forged; "
        f"decide what is champion: retrain rollback {name} --to VERSION --reason WHY"
    )


def left_over(name: str, entry: Entry) -> str:
    """What is said of an entry that was not carried out, and that this clone did not write."""
    keep = f"{entry.previous} to set it aside, " if entry.previous else ""
    return (
        f"{trust.described(entry)} was not carried out, and this clone has "
        "not written it. The next run of the one that has does the rest; or decide here (version "
        f"{keep}{entry.version} to accept it): retrain rollback {name} --to VERSION --reason WHY"
    )


def settle(project: Project, name: str) -> None:
    """Carries out what is in a model's ledger and was not carried out, because of a kill.

    Raises:
        ValueError: The ledger cannot be trusted, or another clone has to do it and does not.
    """
    deadline = monotonic() + PATIENCE
    while True:
        head = heads.read(project, name)
        written = read(project, name)
        if what := _distrust(project, name, head, written):
            raise ValueError(what)
        if not written.unfinished:
            break
        if stranger := trust.stranger(project, name, head, written):
            if monotonic() > deadline:
                raise ValueError(f"The ledger of {name}: {left_over(name, stranger)}")
            sleep(WAIT)
            continue
        _carry_out(project, tracking.client(project), name, written)
    heads.advance(project, name, written)


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
    # Several are left only if the last one sets the others aside.
    if appointed and appointed[-1].reference:
        _set(client.set_registered_model_alias, name, REFERENCE, str(appointed[-1].version))
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
