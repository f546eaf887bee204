"""Makes an earlier champion champion again."""

from pathlib import Path
from tempfile import TemporaryDirectory

from retrain.errors import UsageError
from retrain.project import Project
from retrain.registry import decisions, trust, versions
from retrain.registry.ledger import Decision, Entry, Ledger
from tasks.promote.check import check_version
from tasks.promote.personal import PersonalDecision, decided


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
        UsageError: There is no reason; or the version was never champion, or is it now.
        ChampionChangedError: Another run has changed the champion meanwhile.
        ValueError: There is no champion before; or the version cannot be served.
    """
    if not reason.strip():
        raise UsageError("A rollback needs a reason, for those who read the ledger later.")
    with versions.lock(project):
        return _roll_back(project, name, reason.strip(), to)


def _roll_back(project: Project, name: str, reason: str, to: int | None) -> PersonalDecision:
    written = decisions.read(project, name)
    champion = versions.champion(project, name)
    disputed = trust.look(project, name).unsigned
    if written.unfinished and not disputed:
        decisions.settle(project, name)
        entry = written.appointment
        if entry in written.unfinished and entry.reason == reason:  # this was killed
            return decided(name, entry)
        return _roll_back(project, name, reason, to)
    current = champion.version if champion else None
    number = _target(name, written, current, to, disputed)
    version = versions.get(project, name, number)
    if version is None:
        raise ValueError(f"{name} version {number} was deleted; choose another with --to.")
    if version.broken:
        raise ValueError(version.broken)
    project.state.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=project.state) as scratch:
        latency = check_version(project, version, Path(scratch))
    left_out = _left_out(written, current, number)
    best = versions.reference(project, name)
    becomes = best is None or best.version in left_out
    if disputed and disputed.version == number:  # it is accepted
        becomes = becomes or disputed.reference
    decision = Decision(
        action="rolled back",
        version=number,
        previous=current,
        verdict="rolled back",
        reason=reason,
        reference=becomes,
        package=version.package_digest,
        training=version.train_digest,
    )
    decisions.apply(project, version, decision)
    entry = decisions.read(project, name).appointment
    assert entry is not None
    return decided(name, entry, str(latency))


def _target(
    name: str, written: Ledger, current: int | None, to: int | None, disputed: Entry | None
) -> int:
    """The version to go back to; the champion itself, if that settles what is disputed."""
    if to is None:
        line = list(written.line)
        if current in line:
            while line.pop() != current:
                pass
        if not line:
            before = f" before version {current}" if current else ""
            raise ValueError(f"{name} has no champion{before} to go back to.")
        return line[-1]
    known = sorted({entry.version for entry in written.entries if entry.appoints})
    if to == current and disputed is None:
        raise UsageError(f"{name} version {to} is the champion already.")
    if to not in known:
        others = ", ".join(str(number) for number in known if number != current)
        raise UsageError(
            f"{name} version {to} was never champion." + (f" It was: {others}." if others else "")
        )
    return to


def _left_out(written: Ledger, current: int | None, to: int) -> tuple[int | None, ...]:
    """The versions that a rollback takes out of production."""
    line = written.line
    if current not in line or to not in line:
        return (current,)
    return line[line.index(to) + 1 :]
