"""Carries out what a person decides about a model: an approval, a rejection or a rollback."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from retrain.errors import ChampionChangedError, UsageError
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.registry.ledger import Action, Decision, Entry, Ledger
from retrain.registry.versions import ModelVersion
from retrain.runs import records
from retrain.runs.records import Document
from tasks.promote.outcome import review_commands
from tasks.promote.package import check_version


def decide(
    project: Project, name: str, action: Action, reason: str, version: int | None = None
) -> Document:
    """Promotes the version that waits for approval, or rejects it; or goes back to a champion.

    Before it becomes champion, a version is checked: its files, and what it answers when it is
    loaded in a process of its own. After a kill, the same call does the rest.

    Args:
        project: The clone that the registry belongs to.
        name: The name of the model.
        action: `promoted` or `rejected`, of the version that waits; or `rolled back`, to the
            version.
        reason: Why, for the ledger.
        version: Only if this version waits, whichever waits if None; or the champion to go back
            to, that before the current one if None. What was rolled back itself does not count:
            two calls go back two promotions.

    Returns:
        The decision, which was carried out: `workload`, `action`, `version`, the `previous`
        champion, `reason`, `who`, `time`, the `run` that let the version wait, and the `outcome` in
        one sentence.

    Raises:
        UsageError: There is no reason or no such workload; or another version waits; or the version
            was never champion, or is it now.
        ChampionChangedError: What waits was compared with a champion of the past; or another run
            has changed the champion meanwhile.
        ValueError: Nothing waits, or there is no champion before; or the version was deleted, or
            cannot be served.
    """
    if not decisions.read(project, name).entries:
        records.check_name(project, name)
    reason = reason.strip()
    if not reason:
        raise UsageError("A decision needs a reason, for those who read the ledger later.")
    with versions.lock(project):
        found = decisions.read(project, name)
        last = found.entries[-1] if found.entries and not found.is_settled else None
        ledger = decisions.settle(project, name)
        if last and (last.action, last.reason) == (action, reason):  # by a call that was killed
            return _document(name, last)
        return _decide(project, ledger, action, reason, version)


def _decide(
    project: Project, ledger: Ledger, action: Action, reason: str, number: int | None
) -> Document:
    name, champion = ledger.name, ledger.champion
    waiting = None if action == "rolled back" else _waiting(ledger, number)
    number = waiting.version if waiting else _target(ledger, champion, number)
    version = versions.get(project, name, number)
    if version is None:
        remedy = f"run again: retrain train {name}" if waiting else "choose another with --to"
        raise ValueError(ledger.lost or f"{name} version {number} was deleted; {remedy}.")
    decision = Decision(
        action=action,
        version=number,
        previous=champion,
        verdict=action,
        reason=reason,
        package=version.package_digest,
        training=version.train_digest,
    )
    if waiting:
        decision = replace(
            decision,
            verdict=waiting.verdict,
            document=decisions.considered(project, ledger, waiting),
            data=waiting.data,
            commit=waiting.commit,
            run=waiting.run,
            reference=waiting.reference,
            changed_rules=waiting.changed_rules,
            reviews=waiting.number,
        )
    if action != "rejected":
        _check(project, version, ledger, waiting)
    decisions.apply(project, version, decision)
    entry = decisions.read(project, name).latest(decision)
    assert entry is not None
    return _document(name, entry)


def _document(name: str, entry: Entry) -> Document:
    """What `decide` returns, from the entry in the ledger."""
    previous, why = entry.previous, f"({entry.who}: {entry.why})"
    new = f"new champion, in place of version {previous}" if previous else "first champion"
    instead = f" instead of version {previous}" if previous else ""
    stays = f"; version {previous} stays the champion" if previous else ""
    became = {
        "rolled back": f"the champion again{instead}",
        "promoted": f"approved and is the {new} {why}",
        "rejected": f"rejected {why}{stays}",
    }
    return {
        "workload": name,
        "action": entry.action,
        "version": entry.version,
        "previous": previous,
        "reason": entry.reason,
        "who": entry.who,
        "time": entry.time,
        "run": entry.run,
        "outcome": f"{name} version {entry.version} is {became[entry.action]}",
    }


def _waiting(ledger: Ledger, number: int | None) -> Entry:
    """The entry of the version that waits; an error if none does, or another one."""
    name, waiting = ledger.name, ledger.waiting
    if waiting is None:
        raise ValueError(f"No version of {name} waits for approval. See: retrain history {name}")
    if number not in (None, waiting.version):
        raise UsageError(f"{name} version {waiting.version} waits for approval, not {number}.")
    return waiting


def _check(project: Project, version: ModelVersion, ledger: Ledger, waiting: Entry | None) -> None:
    """Checks that a version can be served, and that one that waits may be approved as it is.

    Raises:
        ChampionChangedError: The version was compared with a champion of the past.
        ValueError: The comparison is gone or was changed, or the version cannot be served.
    """
    if waiting:
        if ledger.champion != waiting.previous:
            raise ChampionChangedError(approval_status(version.name, waiting, ledger.champion))
        decisions.document_of(project, ledger, waiting)  # refuses one that was changed
    with TemporaryDirectory(dir=project.state) as scratch:
        check_version(project, version, Path(scratch))


def approval_status(name: str, waiting: Entry, champion: int | None) -> str:
    """Describes what can be done about a version that waits.

    Args:
        name: The name of the model.
        waiting: The entry of the version in the ledger.
        champion: The champion now; None if there is none.
    """
    waits = f"{name} version {waiting.version} waits for approval since {waiting.time}"
    if champion == waiting.previous:
        why = "; ".join(filter(None, (waiting.verdict, waiting.why)))
        return f"{waits} ({why}): {review_commands(name)}"
    before = f"version {waiting.previous}" if waiting.previous else "no champion"
    current = f"version {champion} is champion" if champion else "there is no champion"
    return (
        f"{waits}; it was compared with {before}, but {current} by now. Compare it again: "
        f"retrain train {name}"
    )


def _target(ledger: Ledger, current: int | None, to: int | None) -> int:
    """The version to go back to."""
    if to is None:
        line = ledger.line
        if current in line:
            line = line[: line.index(current)]
        if not line:
            before = f" before version {current}" if current else ""
            raise ValueError(f"{ledger.name} has no champion{before} to go back to.")
        return line[-1]
    if to == current:
        raise UsageError(f"{ledger.name} version {to} is the champion already.")
    champions = sorted({entry.version for entry in ledger.entries if entry.appoints} - {current})
    if to not in champions:
        earlier = f" It was: {', '.join(map(str, champions))}." if champions else ""
        raise UsageError(f"{ledger.name} version {to} was never champion.{earlier}")
    return to
