"""Digests of files, by which a change of any byte is noticed."""

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
