"""Models that passed the gate and wait for a person, who approves or rejects them."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from retrain.errors import ChampionChangedError
from retrain.project import Project
from retrain.registry import decisions, ledger, versions
from retrain.runs import console, records, suspension
from retrain.runs.notify import notify_now
from retrain.runs.records import Document
from tasks.promote import approval
from tasks.promote.personal import PersonalDecision

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State


def wait(project: Project, document: Document) -> None:
    """Suspends a run of a deployment whose model waits for approval.

    One that has waited before, and does so no more, is ended.
    """
    name, run = document["workload"], document["run"]
    written = decisions.read(project, name)
    over = approval.waited_before(written)
    if over and over.run not in (None, run):
        suspension.end(over.run, *approval.became_of(name, written, over))
    asked = approval.asked_by(written, run)
    if asked and asked == written.waiting and suspension.is_possible():
        notify_now("waiting", document["outcome"])
        _ask(project, name, written, asked)


def resume(project: Project, name: str, run: str) -> "State[Document] | None":
    """Carries out what a person has said of the model that a run let wait.

    Returns:
        The state that the run ends in. None if it did not let a model wait; or if the champion is
        another one by now, so that the model has to be compared again.
    """
    from prefect.states import Completed

    written = decisions.read(project, name)
    asked = approval.asked_by(written, run)
    if asked is None:
        return None
    if asked == written.waiting:
        said = _ask(project, name, written, asked)
        who = f"{said.name} ({ledger.who()})" if said.name else None
        try:
            approval.review(
                project, name, said.decision, said.reason, version=asked.version, who=who
            )
        except ChampionChangedError as error:
            console.say(str(error))
            return None
    state, message = approval.became_of(name, decisions.read(project, name), asked)
    return Completed(name=state, message=message)


def _ask(project: Project, name: str, written: ledger.Ledger, asked: ledger.Entry) -> approval.Form:
    """What a person says of the model that waits; suspends the run until then."""
    text = approval.question(project, name, written, asked)
    return suspension.ask(approval.Form, str(asked.number), text)


def waiting(project: Project, name: str) -> dict[str, Any] | None:
    """The entry in the ledger of the model that waits, and `says`, what can be done about it."""
    entry = decisions.read(project, name).waiting
    if entry is None:
        return None
    champion = versions.champion(project, name)
    says = approval.standing(name, entry, champion.version if champion else None)
    return asdict(entry) | {"says": says}


def review(
    project: Project,
    name: str,
    choice: approval.Choice,
    reason: str,
    version: int | None = None,
) -> PersonalDecision:
    """Approves or rejects the model that waits; see `tasks.promote.approval.review`.

    Raises:
        UsageError: There is no such workload, or another version waits.
        ValueError: Nothing waits, or it cannot be approved.
    """
    if not decisions.read(project, name).entries:
        records.check_name(project, name)
    return approval.review(project, name, choice, reason, version=version)
