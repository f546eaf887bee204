"""Digests of files, by which a change of any byte is noticed."""

import hashlib
from collections.abc import Callable
from pathlib import Path

PIECE = 1 << 20  # bytes that are read at a time


def sha256_of(path: Path, show: Callable[[int], object] = lambda read: None) -> str:
    """SHA-256 (hex) of a file's content.

    Args:
        path: The file.
        show: Called with the number of the bytes of each piece that was read.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            show(len(piece))
    return digest.hexdigest()
