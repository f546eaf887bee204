"""Carries out what a person says of a version that passed the gate and waits for approval."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import BaseModel, Field

from retrain.errors import ChampionChangedError, UsageError
from retrain.project import Project
from retrain.registry import decisions, ledger_run, model_card, versions
from retrain.registry.ledger import LONGEST_REASON, Action, Decision, Entry, Ledger
from retrain.registry.versions import ModelVersion
from tasks.promote.check import check_before_promotion
from tasks.promote.latency import bound_of, exceeds
from tasks.promote.outcome import how_to_review
from tasks.promote.personal import PersonalDecision, decided

Choice = Literal["approve", "reject"]
ACTIONS: dict[Choice, Action] = {"approve": "promoted", "reject": "rejected"}


class Form(BaseModel):
    """What a person fills in who resumes a flow run that waits for approval."""

    decision: Choice
    reason: str = Field(min_length=1, max_length=LONGEST_REASON, description="For the ledger.")
    name: str = Field("", max_length=100, description="Who you are, for the ledger.")


def review(
    project: Project,
    name: str,
    choice: Choice,
    reason: str,
    *,
    version: int | None = None,
    who: str | None = None,
) -> PersonalDecision:
    """Promotes the version that waits for approval, or rejects it.

    Before it becomes champion, it is checked again that it can be served. After a kill, the same
    call does the rest.

    Args:
        project: The clone that the registry belongs to.
        name: The name of the model.
        choice: What the person says.
        reason: Why, for the ledger.
        version: Only if this version waits; whichever waits if None.
        who: The person; the deployment or the user of this process if None.

    Raises:
        UsageError: There is no reason; or another version waits.
        ChampionChangedError: The version was compared with a champion of the past.
        ValueError: Nothing waits; or the version was deleted, cannot be served, or is too slow.
    """
    reason = reason.strip()
    if not reason:
        raise UsageError("A decision needs a reason, for those who read the ledger later.")
    with versions.lock(project):
        decisions.settle(project, name)
        written = decisions.read(project, name)
        if written.waiting is None:
            last = written.entries[-1] if written.entries else None
            if last and last.reviews and (last.action, last.reason) == (ACTIONS[choice], reason):
                return decided(name, last)  # by a call that was killed
            raise ValueError(f"No version of {name} waits for approval.")
        if version not in (None, written.waiting.version):
            raise UsageError(
                f"{name} version {written.waiting.version} waits for approval, not {version}."
            )
        return _review(project, name, written, written.waiting, choice, reason, who)


def _review(
    project: Project,
    name: str,
    written: Ledger,
    waiting: Entry,
    choice: Choice,
    reason: str,
    who: str | None,
) -> PersonalDecision:
    version = versions.get(project, name, waiting.version)
    if version is None:
        raise ValueError(
            f"{name} version {waiting.version} waits, but was deleted. Run again: "
            f"retrain train {name}"
        )
    champion = versions.champion(project, name)
    current = champion.version if champion else None
    document = ledger_run.considered(project, written, waiting)
    if choice == "approve":
        _check(project, version, waiting, current, document)
    decision = Decision(
        action=ACTIONS[choice],
        version=version.version,
        previous=current,
        verdict=waiting.verdict,
        document=document,
        reason=reason,
        data=waiting.data,
        commit=waiting.commit,
        run=waiting.run,
        reference=waiting.reference,
        reviews=waiting.number,
        who=who,
        package=version.package_digest,
        training=version.train_digest,
    )
    decisions.apply(project, version, decision)
    entry = decisions.read(project, name).latest(decision)
    assert entry is not None
    return decided(name, entry)


def _check(
    project: Project,
    version: ModelVersion,
    waiting: Entry,
    champion: int | None,
    document: Mapping[str, Any] | None,
) -> None:
    """Checks that a version may be approved as it is, and can be served.

    Raises:
        ChampionChangedError: The version was compared with a champion of the past.
        ValueError: The comparison is gone, or the version cannot be served, or is too slow.
    """
    if champion != waiting.previous:
        raise ChampionChangedError(standing(version.name, waiting, champion))
    if document is None:
        raise ValueError(
            f"The document of the comparison of {version.title} is gone or was changed. Reject the "
            f"version, and compare it again: retrain train {version.name} --promote"
        )
    project.state.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=project.state) as scratch:
        bound = bound_of(document)
        latency = check_before_promotion(project, version, Path(scratch), bound)
    if bound is not None and latency.p95 > bound:
        raise ValueError(
            f"{version.title} is not promoted and still waits: {exceeds(latency, bound)}. Approve "
            "it again when this machine is less busy; or raise the bound, and then: retrain train "
            f"{version.name}"
        )


def standing(name: str, waiting: Entry, champion: int | None) -> str:
    """What can be done about a version that waits.

    Args:
        name: The name of the model.
        waiting: Its entry.
        champion: The champion now; None if there is none.
    """
    waits = f"{name} version {waiting.version} waits for approval since {waiting.time}"
    if champion == waiting.previous:
        return f"{waits} ({waiting.verdict}): {how_to_review(name)}"
    before = f"version {waiting.previous}" if waiting.previous else "no champion"
    now = f"version {champion} is champion" if champion else "there is no champion"
    return (
        f"{waits}; it was compared with {before}, but {now} by now. Compare it again: "
        f"retrain train {name}"
    )


def asked_by(written: Ledger, run: str) -> Entry | None:
    """The last entry by which a Prefect flow run let a version wait; None if there is none."""
    for entry in reversed(written.entries):
        if entry.action == "waiting" and entry.run == run:
            return entry
    return None


def question(project: Project, name: str, written: Ledger, waiting: Entry) -> str:
    """What a person is asked about a version that waits (Markdown)."""
    title = f"# Is {name} version {waiting.version} to be the champion?"
    version = versions.get(project, name, waiting.version)
    if version is None:
        return title
    rules = decisions.rules(project, written, waiting)
    card = model_card.read(project, version)
    return f"{title}\n\n{model_card.description(version, waiting, rules, card)}"


def waited_before(written: Ledger) -> Entry | None:
    """The last entry of a version that waited and does so no more."""
    for entry in reversed(written.entries):
        if entry.action == "waiting" and entry != written.waiting:
            return entry
    return None


def became_of(name: str, written: Ledger, waited: Entry) -> tuple[str, str]:
    """What became of a version that waits no more, in a word and in a sentence."""
    for each in written.entries:
        if each.reviews == waited.number:
            done = decided(name, each)
            return done.state, f"{done.outcome}."
    if waiting := written.waiting:
        later = f"Another comparison waits for approval by now: {name} version {waiting.version}."
        return "Superseded", later
    return "Superseded", decisions.no_longer_waits(name, waited.version)
