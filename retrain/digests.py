"""Digests of files and of values, by which any change is noticed."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PIECE = 1 << 20  # bytes that are read at a time
ITEMS = 4096  # of a dictionary that are written at a time
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256_of(path: Path | str, show: Callable[[int], object] = lambda read: None) -> str:
    """SHA-256 (hex) of a file's content.

    Args:
        path: The file.
        show: Called with the number of the bytes of each piece that was read.
    """
    digest = hashlib.sha256()
    file = os.open(path, os.O_RDONLY)  # an object for each of many small files takes as long
    try:
        while piece := os.read(file, PIECE):
            digest.update(piece)
            show(len(piece))
    finally:
        os.close(file)
    return digest.hexdigest()


def digest_of(value: Any) -> str:
    """SHA-256 (hex) of a JSON-able value; the order of its keys does not matter."""
    digest = hashlib.sha256()
    for piece in _text_of(value):
        digest.update(piece.encode())
    return digest.hexdigest()


def _text_of(value: Any) -> Iterator[str]:
    """The JSON of a value, in pieces: that of a million files has 130 MB."""
    if not (isinstance(value, dict) and value):
        yield _ENCODER.encode(value)
        return
    items, before = sorted(value.items()), "{"
    if any(isinstance(part, dict) for part in value.values()):
        for key, part in items:
            yield f"{before}{_ENCODER.encode(str(key))}:"
            yield from _text_of(part)
            before = ","
    else:
        for first in range(0, len(items), ITEMS):
            yield before + _ENCODER.encode(dict(items[first : first + ITEMS]))[1:-1]
            before = ","
    yield "}"
