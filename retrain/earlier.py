"""Finds the output that a step has made of an earlier version of its inputs, to take from it."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from retrain.errors import DamagedArtifactError
from retrain.outputs import Plan, list_files, read_digests, read_plan
from retrain.step import Input
from retrain.store import Store


def find(
    store: Store, workload: str, plan: Plan, check: Callable[[Sequence[Input]], object]
) -> Path | None:
    """The folder of the output that a workload's last run of a step has made of other inputs.

    Args:
        store: Where the output is.
        workload: The name of the workload.
        plan: What the next output of the step depends on.
        check: Reads an output; raises a DamagedArtifactError if it has changed since it was made.

    Returns:
        None if more than the inputs was different, or it is not here, whole and undamaged.
    """
    step, last = plan.step, read_plan(store.last_plan(workload, plan.step))
    if last is None or last.definition != plan.definition or last.key == plan.key:
        return None
    artifact = store.find(step, last.key)
    if artifact is None or (artifact.remote and store.missing(step, last.key)):
        return None
    with store.lock(step, last.key):
        store.use(step, last.key)  # so that no clean-up removes it meanwhile
    try:
        check([artifact])
    except DamagedArtifactError:
        return None
    return artifact.folder


def list_shared(folder: Path, earlier: Path) -> list[dict[str, Any]]:
    """Lists the files of an output, and makes those that an earlier one has links to its files.

    Args:
        folder: The output.
        earlier: The folder of the earlier output, which is undamaged.

    Returns:
        As `list_files` does; links that were there already are not read.
    """
    digests = read_digests(earlier)
    there = {digest: f"{earlier}/{path}" for path, digest in digests.items()}
    inodes = {_inode(f"{earlier}/{path}"): digest for path, digest in digests.items()}
    files = list_files(folder, inodes)
    with suppress(OSError):  # a file system without links, or with few
        for file in files:
            path, source = f"{folder}/{file['path']}", there.get(file["sha256"])
            if source and _inode(path) not in inodes:
                Path(path).unlink()
                Path(path).hardlink_to(source)
    return files


def _inode(path: str) -> int:
    return os.stat(path).st_ino  # noqa: PTH116  millions of them
