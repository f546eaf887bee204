"""Writes and reads checkpoints, from which an interrupted training continues."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrain.digests import sha256_of

FOLDER = "checkpoints"

# A checkpoint takes milliseconds, as an epoch of a very small training does: after less time than
# this, none is written at the end of an epoch.
WORTH_SECONDS = 1.0


def save(scratch: Path, step: int, state: dict[str, Any], keep: int) -> None:
    """Writes a checkpoint and removes old ones.

    Args:
        scratch: A folder that no other training uses.
        step: Optimizer steps so far, more than in the checkpoint before.
        state: Tensors and plain values.
        keep: The number of newest checkpoints that are kept.
    """
    import torch

    folder = scratch / FOLDER
    folder.mkdir(exist_ok=True)
    partial = folder / "partial"
    torch.save(state, partial)
    partial.replace(folder / f"{step:010d}-{sha256_of(partial)[:16]}.pt")
    for old in sorted(folder.glob("*.pt"), reverse=True)[keep:]:
        old.unlink()


def load(scratch: Path, step: int) -> dict[str, Any] | None:
    """Reads the checkpoint of a step that another worker has found; None if that is 0.

    Raises:
        FileNotFoundError: This worker does not see it.
    """
    import torch

    if not step:
        return None
    for path in _undamaged(scratch, f"{step:010d}-*.pt"):
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state
    raise FileNotFoundError(f"A worker lacks the checkpoint of step {step}, in {scratch}.")


def newest(scratch: Path) -> int:
    """The step of the newest undamaged checkpoint; 0 if there is none."""
    return next((int(path.name.split("-")[0]) for path in _undamaged(scratch)), 0)


def _undamaged(scratch: Path, pattern: str = "*.pt") -> Iterator[Path]:
    """Checkpoints whose content is what their name says, the newest first."""
    for path in sorted((scratch / FOLDER).glob(pattern), reverse=True):
        if path.stem.endswith(sha256_of(path)[:16]):
            yield path
