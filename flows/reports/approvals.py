"""Models that passed the gate and wait for a person, who approves or rejects them."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import decisions, ledger, model_card, versions
from retrain.registry.ledger import Entry, Ledger
from retrain.runs import console, suspension
from retrain.runs.notify import notify_now
from retrain.runs.records import Document
from tasks.promote.personal import Form, decided, review as review, standing

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


def wait(project: Project, document: Document) -> None:
    """Suspends a run of a deployment whose model waits for approval.

    A suspended run whose model waits no more is ended.
    """
    name, run = document["workload"], document["run"]
    model_ledger = decisions.read(project, name)
    waiting = model_ledger.waiting
    no_longer_waiting = [entry for entry in _waited(model_ledger) if entry != waiting][-1:]
    for entry in no_longer_waiting:
        if entry.run not in (None, run):
            suspension.end(entry.run, *_became_of(name, model_ledger, entry))
    if waiting and waiting.run == run and suspension.is_possible():
        notify_now("waiting", document)
        _ask(project, name, model_ledger, waiting)


def resume(project: Project, name: str, run: str) -> "State[Document] | None":
    """Carries out what a person has said of the model that a run let wait.

    Returns:
        The state that the run ends in. None if it did not let a model wait; or if the champion is
        another one by now, so that the model has to be compared again.
    """
    from prefect.states import Completed

    model_ledger = decisions.read(project, name)
    waited = [entry for entry in _waited(model_ledger) if entry.run == run][-1:]
    if not waited:
        return None
    [entry] = waited
    if entry == model_ledger.waiting:
        answer = _ask(project, name, model_ledger, entry)
        who = f"{answer.name} ({ledger.who()})" if answer.name else None
        try:
            review(project, name, answer.decision, answer.reason, version=entry.version, who=who)
        except ChampionChangedError as error:
            console.say(str(error))
            return None
    state, message = _became_of(name, decisions.read(project, name), entry)
    return Completed(name=state, message=message)


def _waited(model_ledger: Ledger) -> list[Entry]:
    """The entries by which versions were left waiting, oldest first."""
    return [entry for entry in model_ledger.entries if entry.action == "waiting"]


def _ask(project: Project, name: str, model_ledger: Ledger, entry: Entry) -> Form:
    """Asks a person about the model that waits; the run is suspended until the answer."""
    question = f"# Is {name} version {entry.version} to be the champion?"
    if version := versions.get(project, name, entry.version):
        facts = decisions.considered(project, model_ledger, entry)
        card = model_card.read(project, version)
        question += f"\n\n{model_card.description(version, entry, facts, card)}"
    return suspension.ask(Form, str(entry.number), question)


def _became_of(name: str, model_ledger: Ledger, waited: Entry) -> tuple[str, str]:
    """What became of a version that waits no more, in a word and in a sentence."""
    for entry in model_ledger.entries:
        if entry.reviews == waited.number:
            result = decided(name, entry)
            return result.state, f"{result.outcome}."
    if waiting := model_ledger.waiting:
        later = f"Another comparison waits for approval by now: {name} version {waiting.version}."
        return "Superseded", later
    return "Superseded", decisions.no_longer_waits(name, waited.version)


def waiting(project: Project, name: str) -> dict[str, Any] | None:
    """The entry in the ledger of the model that waits, and `says`, what can be done about it."""
    entry = decisions.read(project, name).waiting
    if entry is None:
        return None
    champion = versions.champion(project, name)
    advice = standing(name, entry, champion.version if champion else None)
    return asdict(entry) | {"says": advice}
