"""Keeps the files that a machine has fetched from becoming a full copy of the data."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from time import time

SHARE = 0.5  # of the data, and of what the disk has free without it: the most that stays
KEPT_SECONDS = 300.0  # a file that came within that time may not have been opened yet


def make_room(folder: Path, total: int) -> None:
    """Removes files that can be fetched again, those that came first, until few enough are left.

    Args:
        folder: The folder of the data in the store of this machine.
        total: The bytes of all the data, here or not.
    """
    files = sorted(_fetched(folder))
    here = sum(size for _, size, _ in files)
    excess = here - SHARE * min(total, here + shutil.disk_usage(folder).free)
    for came, size, path in files:
        if excess <= 0 or came > time() - KEPT_SECONDS:
            return
        Path(path).unlink(missing_ok=True)  # another process may be as far
        excess -= size


def _fetched(folder: Path) -> Iterator[tuple[float, int, str]]:
    """When each file below a folder came, its bytes, and its path."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = f"{place}/{name}"
            try:
                status = os.stat(path)  # noqa: PTH116  millions of them
            except FileNotFoundError:  # another process has removed it
                continue
            yield status.st_mtime, status.st_size, path
