"""Checkpoints: all that a training needs to go on from where it was, on disk."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = "checkpoints"
KEPT = 2


def save(scratch: Path, step: int, state: dict[str, Any]) -> None:
    """Writes a checkpoint and keeps it and the one before it.

    Args:
        scratch: A folder of this training alone.
        step: Optimizer steps so far, more than in the checkpoint before.
        state: Tensors and plain values.
    """
    import torch

    folder = scratch / FOLDER
    folder.mkdir(exist_ok=True)
    partial = folder / "partial"
    torch.save(state, partial)
    partial.replace(folder / f"{step:010d}-{_sha256(partial)}.pt")
    for old in list(_newest_first(folder))[KEPT:]:
        old.unlink()


def load(scratch: Path) -> dict[str, Any] | None:
    """Reads the newest checkpoint that is whole; None when there is none."""
    import torch

    for path in _newest_first(scratch / FOLDER):
        if path.stem.endswith(_sha256(path)):
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            return state
    return None


def _newest_first(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob("*.pt"), reverse=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
