"""Checkpoints that are folders: those that are complete, and were not changed since."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrain.atomic import write_json


def seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Marks a folder as complete; its name ends with a number.

    Args:
        folder: With all its files.
        facts: JSON-able; what `newest` returns with it.
    """
    write_json(_record(folder), {"digest": _digest(folder), "facts": dict(facts)})


def sealed(above: Path) -> list[Path]:
    """The complete folders in a folder, the newest last."""
    found = (record.with_suffix("") for record in above.glob("*.json"))
    return sorted(found, key=_number)


def newest(above: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest complete folder that was not changed, with its facts."""
    for folder in reversed(sealed(above)):
        record = json.loads(_record(folder).read_text(encoding="utf-8"))
        if _digest(folder) == record["digest"]:
            return folder, record["facts"]
    return None


def remove_from(above: Path, number: int) -> None:
    """Removes the folders with this number or a higher one, of a try that is not continued."""
    for folder in sealed(above):
        if _number(folder) >= number:
            _remove(folder)


def remove_old(above: Path, kept: int, best: Path | None = None) -> None:
    """Removes all but some of the newest folders.

    Args:
        above: The folder that holds them.
        kept: How many are kept.
        best: Another one that is kept, if it is not among them.
    """
    for folder in sealed(above)[:-kept]:
        if folder != best:
            _remove(folder)


def _remove(folder: Path) -> None:
    _record(folder).unlink()
    shutil.rmtree(folder, ignore_errors=True)  # a kill may have left its record only


def _number(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _record(folder: Path) -> Path:
    return folder.with_suffix(".json")


def _digest(folder: Path) -> str:
    """SHA-256 (hex) of the names and contents of all files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\0".encode())
    return digest.hexdigest()
