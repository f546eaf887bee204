"""Writes and reads checkpoints, from which an interrupted training continues.

Where the workers' machines share no folder, Ray Train copies each checkpoint to its storage, and
each machine takes the newest one from there.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retrain.digests import sha256_of
from retrain.locks import locked

FOLDER = "checkpoints"

# A checkpoint takes milliseconds, as an epoch of a very small training does: after less time than
# this, none is written at the end of an epoch.
WORTH_SECONDS = 1.0


def save(scratch: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Writes a checkpoint and removes old ones.

    Args:
        scratch: A folder that no other training uses.
        step: Optimizer steps so far, more than in the checkpoint before.
        state: Tensors and plain values.
        keep: The number of newest checkpoints that are kept.

    Returns:
        The file.
    """
    import torch

    folder = scratch / FOLDER
    folder.mkdir(exist_ok=True)
    partial = folder / "partial"
    torch.save(state, partial)
    path = partial.replace(folder / f"{step:010d}-{sha256_of(partial)[:16]}.pt")
    for old in sorted(folder.glob("*.pt"), reverse=True)[keep:]:
        old.unlink()
    return path


def report(path: Path | None, metrics: dict[str, Any]) -> None:
    """Has Ray Train copy a checkpoint of the first worker to its storage; all workers call this.

    Args:
        path: The file; None if there is no new one.
        metrics: What the callbacks of Ray Train get.
    """
    import ray.train

    if path is None:
        ray.train.report(metrics)
        return
    with TemporaryDirectory(dir=path.parent) as folder:
        os.link(path, Path(folder) / path.name)
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def fetch(scratch: Path, storage: str) -> None:
    """Takes the newest undamaged checkpoint of Ray Train's storage, and removes all others here.

    A copy that this machine has already is not trusted to be what another one will find in the
    storage: all have to go on at the same step.
    """
    from pyarrow.fs import FileSelector, FileSystem, copy_files

    files, path = FileSystem.from_uri(storage)
    found = files.get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
    stored = {info.base_name: info.path for info in found if info.extension == "pt"}
    folder = scratch / FOLDER
    folder.mkdir(exist_ok=True)
    with locked(folder / "lock"):  # several workers may be on a machine
        for old in folder.glob("*.pt"):
            if old.name not in stored:
                old.unlink()
        for name in sorted(stored, reverse=True):
            copy_files(stored[name], str(folder / "partial"), source_filesystem=files)
            (folder / "partial").replace(folder / name)
            if [*_undamaged(scratch, name)]:
                return


def load(scratch: Path, step: int, *, mapped: bool = False) -> dict[str, Any] | None:
    """Reads the checkpoint of a step that another worker has found; None if that is 0.

    Args:
        scratch: The folder that `save` gets.
        step: The step.
        mapped: Read a tensor only when it is used, as each worker of a divided network takes a part
            of each.

    Raises:
        FileNotFoundError: This worker does not see it.
    """
    import torch

    if not step:
        return None
    for path in _undamaged(scratch, f"{step:010d}-*.pt"):
        state: dict[str, Any] = torch.load(path, "cpu", weights_only=True, mmap=mapped)
        return state
    raise FileNotFoundError(f"A worker lacks the checkpoint of step {step}, in {scratch}.")


def newest(scratch: Path, storage: str | None = None) -> int:
    """The step of the newest undamaged checkpoint; 0 if there is none.

    Args:
        scratch: The folder that `save` gets.
        storage: The storage of Ray Train that `fetch` takes it from, if it does.
    """
    if storage:
        fetch(scratch, storage)
    return next((int(path.name.split("-")[0]) for path in _undamaged(scratch)), 0)


def _undamaged(scratch: Path, pattern: str = "*.pt") -> Iterator[Path]:
    """Checkpoints whose content is what their name says, the newest first."""
    for path in sorted((scratch / FOLDER).glob(pattern), reverse=True):
        if path.stem.endswith(sha256_of(path)[:16]):
            yield path
