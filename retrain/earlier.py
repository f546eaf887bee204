"""Finds the output that a step has made of an earlier version of its inputs, to take from it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from retrain.errors import DamagedArtifactError
from retrain.outputs import Plan, describe, read_digests, read_plan, stats_of
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
    if artifact is None:
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
    there = {digest: path for path, digest in digests.items()}
    inodes = {
        stat.st_ino: digests[path] for path, stat in stats_of(earlier).items() if path in digests
    }
    stats = stats_of(folder)
    files = describe(folder, stats, inodes)
    with suppress(OSError):  # a file system without links, or with few
        for file in files:
            path, source = file["path"], there.get(file["sha256"])
            if source and stats[path].st_ino not in inodes:
                (folder / path).unlink()
                (folder / path).hardlink_to(earlier / source)
    return files
