"""Digests of files, by which a change of any byte is noticed."""

import hashlib
from collections.abc import Callable
from pathlib import Path

PIECE = 1 << 20  # bytes that are read at a time


def sha256_of(path: Path, show: Callable[[int], object] = lambda read: None) -> str:
    """SHA-256 (hex) of a file's content; see `digest_of_file`."""
    return digest_of_file(path, "sha256", show)


def digest_of_file(path: Path, algorithm: str, show: Callable[[int], object]) -> str:
    """A digest (hex) of a file's content.

    Args:
        path: The file.
        algorithm: Its name in `hashlib`.
        show: Called with the number of the bytes of each piece that was read.
    """
    digest = hashlib.new(algorithm)
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            show(len(piece))
    return digest.hexdigest()
