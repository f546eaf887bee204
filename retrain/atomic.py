"""Writes files and folders under a temporary name and renames them when they are complete.

So no reader ever sees a part of one under its final name.
"""

import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterator
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
