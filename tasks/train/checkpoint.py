"""Writes and reads checkpoints, from which an interrupted training continues."""

from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.digests import sha256_of
from tasks.train.collective import said_by_first

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "checkpoints"

# A checkpoint takes milliseconds, as an epoch of a very small training does: after less time than
# this, none is written at the end of an epoch.
WORTH_SECONDS = 1.0


def is_finite(state: Any) -> bool:
    """Whether all numbers in a state are finite, in tensors and outside.

    Args:
        state: Tensors, plain values, and mappings and sequences of such.
    """
    from torch.nn.utils import get_total_norm

    tensors, numbers = _numbers_of(state)
    if not all(map(isfinite, numbers)):
        return False
    # A GPU waits for one result only. The sum of squares, which is faster, may overflow.
    return not tensors or any(get_total_norm(tensors, p).isfinite() for p in (2.0, float("inf")))


def _numbers_of(state: Any) -> tuple[list["Tensor"], list[float]]:
    import torch

    if isinstance(state, torch.Tensor):
        return ([state] if state.is_floating_point() and state.numel() else []), []
    if isinstance(state, float):
        return [], [state]
    tensors: list[Tensor] = []
    numbers: list[float] = []
    if isinstance(state, Mapping):
        state = list(state.values())
    for each in state if isinstance(state, list | tuple) else ():
        more_tensors, more_numbers = _numbers_of(each)
        tensors += more_tensors
        numbers += more_numbers
    return tensors, numbers


def save(scratch: Path, step: int, state: dict[str, Any], kept: int) -> None:
    """Writes a checkpoint and removes old ones.

    Args:
        scratch: A folder that no other training uses.
        step: Optimizer steps so far, more than in the checkpoint before.
        state: Tensors and plain values.
        kept: How many of the newest there are afterwards.
    """
    import torch

    folder = scratch / FOLDER
    folder.mkdir(exist_ok=True)
    partial = folder / "partial"
    torch.save(state, partial)
    partial.replace(folder / f"{step:010d}-{sha256_of(partial)[:16]}.pt")
    for old in sorted(folder.glob("*.pt"), reverse=True)[kept:]:
        old.unlink()


def load(scratch: Path) -> dict[str, Any] | None:
    """Reads the newest undamaged checkpoint, as the first worker sees it; None if there is none.

    Raises:
        FileNotFoundError: This worker does not see it.
    """
    import torch

    step = said_by_first(newest(scratch))
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
