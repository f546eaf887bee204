"""Writes files and folders aside and renames them: nobody ever sees a part under their name."""

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
    """Gives a name aside for a file or a folder, which gets its own name after the block.

    The name is beside it and of no other writer, in any process. Of several files the last one
    wins; of several folders the first one, so they have to hold the same. If the block raises,
    nothing changes. What writers left that were killed is removed a day later.

    Args:
        path: What the block makes; its folder exists.

    Yields:
        What the block has to write to. There is nothing yet.
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
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
