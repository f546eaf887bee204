"""What a clone knows of the ledger of a model without MLflow.

The head, the number and the digest of the last entry, is a file of the project, `ledger/vit.json`.
It is meant for git: a ledger that lacks that entry was cut off or replaced. And below `.retrain`
the digest of each entry is noted before this clone writes it, so that the clone knows its own.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from retrain import atomic
from retrain.project import LEDGERS, Project
from retrain.registry.ledger import Ledger


@dataclass(frozen=True)
class Head:
    """The last entry of a ledger when this file of the project was written.

    Attributes:
        ledger: The id of the ledger's MLflow run.
        number: Of the entry.
        digest: SHA-256 (hex) of the entry.
    """

    ledger: str
    number: int
    digest: str


def read(project: Project, name: str) -> Head | None:
    """The head of a model's ledger, as the project has it; None if it has none.

    It is to be read before the ledger, which may become longer meanwhile.

    Raises:
        ValueError: The file was damaged, such as by a merge.
    """
    path = _path(project, name)
    try:
        return Head(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise ValueError(
            f"{project.relative(path)} cannot be read. After a merge, keep the side with the "
            "higher number."
        ) from None


def names(project: Project) -> list[str]:
    """The models of whose ledgers the project has the head."""
    return sorted(path.stem for path in (project.root / LEDGERS).glob("*.json"))


def advance(project: Project, name: str, written: Ledger) -> None:
    """Writes the head of a ledger, unless the project has it, or that of another ledger."""
    before = read(project, name)
    if not written.head or written.run is None:
        return
    if before and (before.ledger != written.run or before.number >= written.next - 1):
        return
    path = _path(project, name)
    path.parent.mkdir(exist_ok=True)
    now = Head(written.run, written.next - 1, written.head)
    atomic.write_text(path, json.dumps(asdict(now), indent=1) + "\n")


def fault(project: Project, name: str, head: Head | None, written: Ledger) -> str | None:
    """How a ledger disagrees with its head; None if it does not.

    A clone may use an MLflow of its own beside the one that the head is of: one whose ledger it has
    begun itself, or, if it has decided nothing yet, the file in its folder.
    """
    if head is None:
        return None
    file = project.relative(_path(project, name))
    if head.ledger == written.run:
        digests = {entry.number: entry.digest for entry in written.entries}
        if head.number not in digests:
            return f"entry {head.number}, which {file} names, is gone: it was cut off"
        if digests[head.number] != head.digest:
            return f"entry {head.number} is not the one that {file} names: it was rewritten"
        return None
    ours = _noted(project, name)
    is_fresh = not ours and not written.entries and project.has_own_mlflow
    if is_fresh or any(ledger == written.run for ledger, _ in ours):
        return None
    return (
        f"{file} names another one (MLflow run {head.ledger}, {head.number} entries) than this "
        "MLflow has; if that was begun anew on purpose, remove the file"
    )


def note(project: Project, name: str, ledger: str, digest: str) -> None:
    """Notes that this clone is about to write an entry.

    Args:
        project: The clone.
        name: The name of the model.
        ledger: The id of the ledger's MLflow run.
        digest: SHA-256 (hex) of the entry.
    """
    path = _journal(project, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{ledger} {digest}\n")


def is_own(project: Project, name: str, ledger: str | None, digest: str) -> bool:
    """Whether this clone has written an entry."""
    return (ledger, digest) in _noted(project, name)


def _noted(project: Project, name: str) -> set[tuple[str | None, str]]:
    try:
        lines = _journal(project, name).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return set()
    return {(line.partition(" ")[0], line.partition(" ")[2]) for line in lines}


def _path(project: Project, name: str) -> Path:
    return project.root / LEDGERS / f"{name}.json"


def _journal(project: Project, name: str) -> Path:
    return project.state / LEDGERS / f"{name}.txt"
