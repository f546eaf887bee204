"""Writes text files atomically: a reader sees the old text or the new one, never a part."""

import glob
import os
import secrets
from contextlib import suppress
from pathlib import Path
from time import time

ABANDONED_SECONDS = 3600.0  # since when a partial file was written; the rename follows at once


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) atomically; of several writers, the last one wins.

    Partial files of it that killed writers left are removed.
    """
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with suppress(FileNotFoundError):  # its writer has renamed it
            if time() - left.stat().st_mtime > ABANDONED_SECONDS:
                left.unlink()
    # A name of its own for each writer, in any process.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
