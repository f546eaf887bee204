"""Files on a disk: replaced whole, so that no reader sees half of one; and their digests."""

import glob
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any

ABANDONED_SECONDS = 86400.0  # since when nothing was written to what a killed writer has left


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary name for a file or a folder, which gets its own name after the block.

    The temporary name is in the same folder, and no other writer has it, in any process. If
    several writers make the same file, the last one wins; for a folder the first one wins, so all
    of them have to write the same content. If the block raises, nothing changes. What killed
    writers left is removed a day later.

    Args:
        path: What the block makes; its folder exists.

    Yields:
        The path that the block has to write to. Nothing exists there yet.
    """
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with suppress(FileNotFoundError):  # its writer has renamed it
            if time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                _remove(leftover)
    aside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        yield aside
        try:
            aside.replace(path)
        except OSError:
            if not (aside.is_dir() and path.is_dir()):  # else another writer was first
                raise
    finally:
        _remove(aside)


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8); of several writers, the last one wins."""
    with replacing(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, its keys in order; the same value always gives the same bytes."""
    with replacing(path) as aside, aside.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True)  # `dumps` holds a million files thrice
        file.write("\n")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


PIECE = 1 << 20  # bytes that are read at a time


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


def json_digest(value: Any) -> str:
    """SHA-256 (hex) of a JSON-able value; the order of its keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
