"""Writes and reads the checkpoints that the project's own loop reports.

A checkpoint has two files: the `weights` of the network as it was evaluated, and the `state` from
which the training goes on. The name of each has the digest of its content.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pyarrow.fs import FileSelector, FileType
from ray.train import Checkpoint

from retrain.digests import sha256_of

WEIGHTS, STATE = "weights", "state"
DIGITS = 16  # of a digest


def write(folder: Path, weights: dict[str, Any], state: dict[str, Any]) -> Checkpoint:
    """Writes a checkpoint, in place of one that was not reported any more.

    Args:
        folder: Gets it.
        weights: The tensors of the network.
        state: Tensors and plain values.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in ((WEIGHTS, weights), (STATE, state)):
        path = folder / name
        torch.save(content, path)
        path.rename(folder / f"{name}-{sha256_of(path)[:DIGITS]}.pt")
    return Checkpoint.from_directory(folder)


def read(folder: Path, name: str, *, mapped: bool = False) -> dict[str, Any]:
    """Reads a file of a checkpoint.

    Args:
        folder: The checkpoint's.
        name: `WEIGHTS` or `STATE`.
        mapped: Read a tensor only when it is used, as each worker of a divided network takes a part
            of each.
    """
    [path] = folder.glob(f"{name}-*.pt")
    content: dict[str, Any] = torch.load(path, "cpu", weights_only=True, mmap=mapped)
    return content


def is_undamaged(folder: Path) -> bool:
    """Whether both files are there, with the content that their names say."""
    files = [*folder.glob("*.pt")]
    return len(files) == 2 and all(path.stem.endswith(sha256_of(path)[:DIGITS]) for path in files)


@contextmanager
def opened(newest: Checkpoint | None) -> Iterator[Path | None]:
    """The folder of a reported checkpoint, or of the newest undamaged one before it, if any."""
    if newest is None:
        yield None
        return
    above, files = newest.path.rpartition("/")[0], newest.filesystem
    found = files.get_file_info(FileSelector(above))
    folders = [info.path for info in found if info.type == FileType.Directory]
    for path in sorted((path for path in folders if path <= newest.path), reverse=True):
        with Checkpoint(path, files).as_directory() as folder:
            if is_undamaged(Path(folder)):
                yield Path(folder)
                return
    yield None
