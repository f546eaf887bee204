"""Writes text files atomically: a reader sees the old text or the new one, never a part."""

import os
import secrets
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes a text file (UTF-8) atomically; of several writers, the last one wins."""
    # A name of its own for each writer, in any process.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
