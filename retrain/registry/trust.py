"""Whether a run may build on the ledger of a model, and carry out what it finds there."""

from collections.abc import Iterator

from retrain.project import Project
from retrain.registry import heads, ledger, signatures
from retrain.registry.heads import Head
from retrain.registry.ledger import Entry, Ledger


def faults(project: Project, name: str, head: Head | None, written: Ledger) -> Iterator[str]:
    """What was done to a ledger: its chain is broken, or its head is another one."""
    yield from ledger.broken_chain(written.values, written.first, written.seal)
    if what := heads.fault(project, name, head, written):
        yield what


def unsigned(project: Project, name: str, head: Head | None, written: Ledger) -> Entry | None:
    """The first entry at the end of a ledger that no allowed signer stands for.

    Each entry has the digest of the one before it. So a signature stands for all entries up to its
    own; and so does the head in the project, for those from before signatures were demanded.

    Returns:
        None if there is none, or if no signatures are demanded.
    """
    if not signatures.are_demanded(project):
        return None
    known = head.number if head and head.ledger == written.run else 0
    found = None
    for entry in reversed(written.entries):
        if entry.is_old or entry.number <= known:
            break
        text = ledger.signed_text(name, entry.number, written.values[f"{entry.number:06d}"])
        if entry.signature and signatures.is_valid(project, text, entry.signature, entry.time):
            break
        found = entry
    return found


def stranger(project: Project, name: str, head: Head | None, written: Ledger) -> Entry | None:
    """The entry that this clone may not carry out; None if it may do so with all that are left.

    Only an entry that moves the alias `champion` can be that, and of several only the last counts.
    It is carried out by the clone that wrote it; where signatures are demanded, by anybody if it is
    signed.
    """
    last = next((each for each in reversed(written.unfinished) if each.appoints), None)
    if last is None:
        return None
    if signatures.are_demanded(project):
        first = unsigned(project, name, head, written)
        return last if first and first.number <= last.number else None
    return None if heads.is_own(project, name, written.run, last.digest) else last


def described(entry: Entry) -> str:
    """An entry for a person: what it says, by whom and when."""
    return (
        f"entry {entry.number} ({entry.action} version {entry.version}, by {entry.who}, "
        f"{entry.time})"
    )
