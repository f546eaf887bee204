"""Reads what an earlier output of `pull` has, so that the same files are not brought again."""

import json
from pathlib import Path

from retrain.outputs import MANIFEST


def read_known(earlier: Path | None) -> dict[str, tuple[str, str]]:
    """The SHA-256 (hex) of each file of the data, and where it is, by its name; none without one.

    A link to such a file is as good as a copy: nobody writes to it, and it has just been checked.
    """
    if earlier is None:
        return {}
    files = json.loads((earlier / MANIFEST).read_bytes())["files"]
    return {
        file["path"].removeprefix("data/"): (file["sha256"], f"{earlier}/{file['path']}")
        for file in files
    }
