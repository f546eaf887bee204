"""Whether a run may build on the ledger of a model, and carry out what it finds there."""

from dataclasses import dataclass

from retrain.project import Project
from retrain.registry import heads, ledger, signatures, snapshot
from retrain.registry.heads import Head
from retrain.registry.ledger import Entry, Ledger


@dataclass(frozen=True)
class Standing:
    """A ledger, and what is to be thought of it.

    Attributes:
        ledger: As it was read.
        aliases: The number of a version, by alias, at the same moment.
        faults: What was done to the ledger: its chain is broken, or its head is another one.
        unsigned: The first entry at its end that no allowed signer stands for; None if there is
            none, or if no signatures are demanded.
    """

    ledger: Ledger
    aliases: dict[str, int]
    faults: tuple[str, ...]
    unsigned: Entry | None

    @property
    def distrust(self) -> str | None:
        """Why nothing may be entered after what the ledger has; None if it may."""
        name = self.ledger.name
        if self.faults:
            return (
                f"The ledger of {name}: {self.faults[0]}. Nothing is decided until that is mended."
            )
        return f"The ledger of {name}: {self.forged}" if self.unsigned else None

    @property
    def forged(self) -> str:
        """What is said of the entry that is not signed, and what a person can do."""
        entry = self.unsigned
        assert entry
        return (
            f"entry {entry.number} ({entry.action} version {entry.version}, by {entry.who}, "
            f"{entry.time}) carries no signature of an allowed signer. It may be forged; decide "
            f"what is champion: retrain rollback {self.ledger.name} --to VERSION --reason WHY"
        )


def look(project: Project, name: str) -> Standing:
    """Reads the ledger of a model, and judges it.

    Raises:
        ValueError: It, or the file with its head, was changed so that it cannot be read.
    """
    head = heads.read(project, name)
    model = snapshot.read(project, name)
    written = ledger.read(model)
    faults = [*written.broken_chain()]
    if fault := heads.fault(project, head, written):
        faults.append(fault)
    unsigned = _unsigned(project, head, written)
    return Standing(written, dict(model.aliases), tuple(faults), unsigned)


def _unsigned(project: Project, head: Head | None, written: Ledger) -> Entry | None:
    """The first entry at the end of a ledger that no allowed signer stands for.

    Each entry has the digest of the one before it. So a signature stands for all entries up to its
    own; and so does the head in the project, for those from before signatures were demanded.
    """
    if not signatures.are_demanded(project):
        return None
    known = head.number if head and head.ledger == written.run else 0
    unsigned = None
    for entry in reversed(written.entries):
        if entry.number <= known:
            break
        text = ledger.signed_text(
            written.name, entry.number, written.values[ledger.key_of(entry.number)]
        )
        if entry.signature and signatures.is_valid(project, text, entry.signature, entry.time):
            break
        unsigned = entry
    return unsigned
