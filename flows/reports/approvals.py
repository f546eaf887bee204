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

    One that has waited before, and does so no more, is ended.
    """
    name, run = document["workload"], document["run"]
    written = decisions.read(project, name)
    waiting = written.waiting
    over = [entry for entry in _waited(written) if entry != waiting][-1:]
    for entry in over:
        if entry.run not in (None, run):
            suspension.end(entry.run, *_became_of(name, written, entry))
    if waiting and waiting.run == run and suspension.is_possible():
        notify_now("waiting", document["outcome"])
        _ask(project, name, written, waiting)


def resume(project: Project, name: str, run: str) -> "State[Document] | None":
    """Carries out what a person has said of the model that a run let wait.

    Returns:
        The state that the run ends in. None if it did not let a model wait; or if the champion is
        another one by now, so that the model has to be compared again.
    """
    from prefect.states import Completed

    written = decisions.read(project, name)
    asked = [entry for entry in _waited(written) if entry.run == run][-1:]
    if not asked:
        return None
    [entry] = asked
    if entry == written.waiting:
        answer = _ask(project, name, written, entry)
        who = f"{answer.name} ({ledger.who()})" if answer.name else None
        try:
            review(project, name, answer.decision, answer.reason, version=entry.version, who=who)
        except ChampionChangedError as error:
            console.say(str(error))
            return None
    state, message = _became_of(name, decisions.read(project, name), entry)
    return Completed(name=state, message=message)


def _waited(written: Ledger) -> list[Entry]:
    """The entries by which versions were left waiting, oldest first."""
    return [entry for entry in written.entries if entry.action == "waiting"]


def _ask(project: Project, name: str, written: Ledger, entry: Entry) -> Form:
    """What a person says of the model that waits; suspends the run until then."""
    question = f"# Is {name} version {entry.version} to be the champion?"
    if version := versions.get(project, name, entry.version):
        rules = decisions.considered(project, written, entry).get("rules", ())
        card = model_card.read(project, version)
        question += f"\n\n{model_card.description(version, entry, rules, card)}"
    return suspension.ask(Form, str(entry.number), question)


def _became_of(name: str, written: Ledger, waited: Entry) -> tuple[str, str]:
    """What became of a version that waits no more, in a word and in a sentence."""
    for entry in written.entries:
        if entry.reviews == waited.number:
            done = decided(name, entry)
            return done.state, f"{done.outcome}."
    if waiting := written.waiting:
        later = f"Another comparison waits for approval by now: {name} version {waiting.version}."
        return "Superseded", later
    return "Superseded", decisions.no_longer_waits(name, waited.version)


def waiting(project: Project, name: str) -> dict[str, Any] | None:
    """The entry in the ledger of the model that waits, and `says`, what can be done about it."""
    entry = decisions.read(project, name).waiting
    if entry is None:
        return None
    champion = versions.champion(project, name)
    says = standing(name, entry, champion.version if champion else None)
    return asdict(entry) | {"says": says}
