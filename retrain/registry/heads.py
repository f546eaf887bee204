"""What a clone knows of the ledger of a model without MLflow.

The head, the number and the digest of the last entry, is a file of the project, `ledger/vit.json`.
It is meant for git: a ledger that lacks that entry was cut off or replaced. And below `.retrain`
the clone notes the MLflow run of the ledger that it writes to.
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


def advance(project: Project, written: Ledger) -> None:
    """Writes the head of a ledger, unless the project has it, or that of another ledger."""
    if not written.entries or written.run is None:
        return
    last, before = written.entries[-1], read(project, written.name)
    if before and (before.ledger != written.run or before.number >= last.number):
        return
    path = _path(project, written.name)
    path.parent.mkdir(exist_ok=True)
    head = Head(written.run, last.number, last.digest)
    atomic.write_text(path, json.dumps(asdict(head), indent=1) + "\n")


def fault(project: Project, head: Head | None, written: Ledger) -> str | None:
    """How a ledger disagrees with its head; None if it does not.

    A clone may use an MLflow of its own beside the one that the head is of: one whose ledger it has
    begun itself, or, if it has decided nothing yet, the file in its folder.
    """
    if head is None:
        return None
    file = project.relative(_path(project, written.name))
    if head.ledger == written.run:
        digest = next((each.digest for each in written.entries if each.number == head.number), None)
        if digest is None:
            return f"entry {head.number}, which {file} names, is gone: it was cut off"
        if digest != head.digest:
            return f"entry {head.number} is not the one that {file} names: it was rewritten"
        return None
    note = _note(project, written.name)
    noted = note.read_text(encoding="utf-8").split() if note.exists() else []
    is_fresh = not noted and not written.entries and project.has_own_mlflow
    if is_fresh or written.run in noted:
        return None
    return (
        f"{file} names another one (MLflow run {head.ledger}, {head.number} entries) than this "
        "MLflow has; if that was begun anew on purpose, remove the file"
    )


def note(project: Project, name: str, ledger: str) -> None:
    """Notes the MLflow run of the ledger that this clone is about to write to."""
    path = _note(project, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, ledger)


def _path(project: Project, name: str) -> Path:
    return project.root / LEDGERS / f"{name}.json"


def _note(project: Project, name: str) -> Path:
    return project.state / LEDGERS / f"{name}.txt"
