"""Digests of files and of values, by which any change is noticed."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a JSON-able value; the order of its keys does not matter."""
    encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256()
    for piece in encoder.iterencode(value):  # the text of a million files has 130 MB
        digest.update(piece.encode())
    return digest.hexdigest()
