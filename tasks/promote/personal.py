"""Carries out what a person decides about a model: an approval, a rejection or a rollback."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from retrain.errors import ChampionChangedError, UsageError
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Action, Decision, Entry, Ledger
from retrain.registry.versions import ModelVersion
from retrain.runs import records
from tasks.promote.check import check_before_promotion, check_version
from tasks.promote.latency import bound_of, exceeds
from tasks.promote.outcome import how_to_review

Choice = Literal["approve", "reject"]
ACTIONS: dict[Choice, Action] = {"approve": "promoted", "reject": "rejected"}


@dataclass(frozen=True)
class PersonalDecision:
    """An approval, a rejection or a rollback; it was carried out.

    Attributes:
        workload: The name of the model.
        action: `promoted`, `rejected` or `rolled back`.
        version: The version that waited; or the champion after a rollback.
        previous: The champion before; None if there was none.
        reason: The reason that the person gave.
        who: The person, the deployment, or the user of the machine.
        time: ISO 8601, UTC.
        run: The run that let the version wait; None if there is none.
        says: How fast the version is here; None if it was not measured by this call.
    """

    workload: str
    action: Action
    version: int
    previous: int | None
    reason: str
    who: str
    time: str
    run: str | None
    says: str | None = None

    @property
    def outcome(self) -> str:
        """The decision in one sentence."""
        title, previous = f"{self.workload} version {self.version}", self.previous
        if self.action == "rolled back":
            instead = f" instead of version {previous}" if previous else ""
            return f"{title} is the champion again{instead}"
        why = f"({self.who}: {self.reason})"
        if self.action == "promoted":
            new = f"new champion, in place of version {previous}" if previous else "first champion"
            return f"{title} is approved and is the {new} {why}"
        stays = f"; version {previous} stays the champion" if previous else ""
        return f"{title} is rejected {why}{stays}"


def decided(name: str, entry: Entry, says: str | None = None) -> PersonalDecision:
    """The decision of a person about a model, from its entry in the ledger."""
    assert entry.reason and entry.who
    return PersonalDecision(
        name,
        entry.action,
        entry.version,
        entry.previous,
        entry.reason,
        entry.who,
        entry.time,
        entry.run,
        says,
    )


def review(
    project: Project,
    name: str,
    choice: Choice,
    reason: str,
    *,
    version: int | None = None,
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

    Raises:
        UsageError: There is no reason or no such workload; or another version waits.
        ChampionChangedError: The version was compared with a champion of the past.
        ValueError: Nothing waits; or the version was deleted, cannot be served, or is too slow.
    """
    reason = _checked(project, name, reason)
    with versions.lock(project):
        decisions.settle(project, name)
        ledger = decisions.read(project, name)
        if ledger.waiting is None:
            last = ledger.entries[-1] if ledger.entries else None
            if last and last.reviews and (last.action, last.reason) == (ACTIONS[choice], reason):
                return decided(name, last)  # by a call that was killed
            raise ValueError(f"No version of {name} waits for approval.")
        if version not in (None, ledger.waiting.version):
            raise UsageError(
                f"{name} version {ledger.waiting.version} waits for approval, not {version}."
            )
        return _review(project, name, ledger, ledger.waiting, choice, reason)


def _review(
    project: Project,
    name: str,
    ledger: Ledger,
    waiting: Entry,
    choice: Choice,
    reason: str,
) -> PersonalDecision:
    version = versions.get(project, name, waiting.version)
    if version is None:
        raise ValueError(
            f"{name} version {waiting.version} waits, but was deleted. Run again: "
            f"retrain train {name}"
        )
    champion = versions.champion(project, name)
    current = champion.version if champion else None
    if choice == "approve":
        _check(project, version, ledger, waiting, current)
    document = decisions.considered(project, ledger, waiting)
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
        package=version.package_digest,
        training=version.train_digest,
    )
    decisions.apply(project, version, decision)
    entry = decisions.read(project, name).latest(decision)
    assert entry is not None
    return decided(name, entry)


def _check(
    project: Project, version: ModelVersion, ledger: Ledger, waiting: Entry, champion: int | None
) -> None:
    """Checks that a version may be approved as it is, and can be served.

    Raises:
        ChampionChangedError: The version was compared with a champion of the past.
        ValueError: The comparison is gone, or the version cannot be served, or is too slow.
    """
    if champion != waiting.previous:
        raise ChampionChangedError(standing(version.name, waiting, champion))
    bound = bound_of(decisions.document_of(project, ledger, waiting))
    project.state.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=project.state) as scratch:
        latency = check_before_promotion(project, version, Path(scratch), bound)
    if bound is not None and latency.p95 > bound:
        raise ValueError(
            f"{version.title} is not promoted and still waits: {exceeds(latency, bound)}. Approve "
            "it again when this machine is less busy; or raise the bound, and then: retrain train "
            f"{version.name}"
        )


def _checked(project: Project, name: str, reason: str) -> str:
    """The reason for a decision, without spaces around it.

    Raises:
        UsageError: The reason is empty; or there is no such workload.
    """
    if not decisions.read(project, name).entries:
        records.check_name(project, name)
    if not reason.strip():
        raise UsageError("A decision needs a reason, for those who read the ledger later.")
    return reason.strip()


def standing(name: str, waiting: Entry, champion: int | None) -> str:
    """Describes what can be done about a version that waits.

    Args:
        name: The name of the model.
        waiting: The entry of the version in the ledger.
        champion: The champion now; None if there is none.
    """
    waits = f"{name} version {waiting.version} waits for approval since {waiting.time}"
    if champion == waiting.previous:
        return f"{waits} ({waiting.verdict}): {how_to_review(name)}"
    before = f"version {waiting.previous}" if waiting.previous else "no champion"
    current = f"version {champion} is champion" if champion else "there is no champion"
    return (
        f"{waits}; it was compared with {before}, but {current} by now. Compare it again: "
        f"retrain train {name}"
    )


def roll_back(project: Project, name: str, reason: str, to: int | None = None) -> PersonalDecision:
    """Makes the champion before the current one champion again, or a certain earlier one.

    The version is checked as before a promotion: its files, and what it answers when it is loaded
    in a process of its own. How fast it is stops nothing. After a kill, the same call does the
    rest.

    Args:
        project: The clone that the registry belongs to.
        name: The name of the model.
        reason: Why, for the ledger.
        to: The version; if None, the champion before the current one. What was rolled back itself
            does not count: two calls go back two promotions.

    Raises:
        UsageError: There is no reason or no such workload; or the version was never champion, or
            is it now.
        ChampionChangedError: Another run has changed the champion meanwhile.
        ValueError: There is no champion before; or the version cannot be served.
    """
    reason = _checked(project, name, reason)
    with versions.lock(project):
        return _roll_back(project, name, reason, to)


def _roll_back(project: Project, name: str, reason: str, to: int | None) -> PersonalDecision:
    ledger = decisions.read(project, name)
    champion = versions.champion(project, name)
    if ledger.unfinished:
        decisions.settle(project, name)
        entry = ledger.appointment
        if entry in ledger.unfinished and entry.reason == reason:  # this was killed
            return decided(name, entry)
        return _roll_back(project, name, reason, to)
    current = champion.version if champion else None
    number = _target(name, ledger, current, to)
    version = versions.get(project, name, number)
    if version is None:
        raise ValueError(f"{name} version {number} was deleted; choose another with --to.")
    if version.broken:
        raise ValueError(version.broken)
    project.state.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=project.state) as scratch:
        latency = check_version(project, version, Path(scratch))
    left_out = _left_out(ledger, current, number)
    best = versions.reference(project, name)
    decision = Decision(
        action="rolled back",
        version=number,
        previous=current,
        verdict="rolled back",
        reason=reason,
        reference=best is None or best.version in left_out,
        package=version.package_digest,
        training=version.train_digest,
    )
    decisions.apply(project, version, decision)
    entry = decisions.read(project, name).appointment
    assert entry is not None
    return decided(name, entry, str(latency))


def _target(name: str, ledger: Ledger, current: int | None, to: int | None) -> int:
    """The version to go back to."""
    if to is None:
        line = ledger.line
        if current in line:
            line = line[: line.index(current)]
        if not line:
            before = f" before version {current}" if current else ""
            raise ValueError(f"{name} has no champion{before} to go back to.")
        return line[-1]
    champions = sorted({entry.version for entry in ledger.entries if entry.appoints})
    if to == current:
        raise UsageError(f"{name} version {to} is the champion already.")
    if to not in champions:
        earlier = ", ".join(str(number) for number in champions if number != current)
        raise UsageError(
            f"{name} version {to} was never champion." + (f" It was: {earlier}." if earlier else "")
        )
    return to


def _left_out(ledger: Ledger, current: int | None, to: int) -> tuple[int | None, ...]:
    """The versions that a rollback takes out of production."""
    line = ledger.line
    if current not in line or to not in line:
        return (current,)
    return line[line.index(to) + 1 :]
