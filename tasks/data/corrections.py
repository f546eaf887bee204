"""The labels that people have corrected: an overlay beside the data."""

from pathlib import Path

FILE = "corrections.csv"


def read(root: Path) -> dict[str, str]:
    """The label of each image that was corrected, by its SHA-256 (hex)."""
    return {}
