"""Writes JSON files; the same value always gives the same bytes."""

import json
from pathlib import Path
from typing import Any

from retrain import atomic


def write_json(path: Path, value: Any) -> None:
    """Writes a value as a JSON file, its keys in order, completely or not at all."""
    atomic.write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")
