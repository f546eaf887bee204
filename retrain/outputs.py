"""The output of a step: what is known of it, what is listed of its files, and their digest."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrain.digests import sha256_of
from retrain.step import REPORT, digest_of

MANIFEST = "manifest.json"  # of an output in the store; see `retrain/store.py`


@dataclass(frozen=True)
class Artifact:
    """A finished output of a step.

    Attributes:
        step: The step's name.
        key: The key of the plan that made it.
        digest: SHA-256 (hex) over its files, without those in `report/`, and its facts.
        folder: The folder of its files; the empty path for a step that leaves none.
        facts: A few values that later steps need; the same for the same key.
        provenance: How it was made: `run` (Prefect flow run, or `dvc`), `time` (ISO 8601, UTC),
            `seconds`, `commit`, what was `uncommitted` (`Project.uncommitted`), `workload`, and on
            which `machine` (`retrain.hardware.machine`).
    """

    step: str
    key: str
    digest: str
    folder: Path
    facts: Mapping[str, Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)


def digest_of_output(facts: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256 (hex) over an output's facts and its files, as `list_files` gives them.

    Files in `report/` do not count.
    """
    contents = {
        file["path"]: file["sha256"] for file in files if not file["path"].startswith(f"{REPORT}/")
    }
    return digest_of({"facts": facts, "files": contents})


def list_files(folder: Path) -> list[dict[str, Any]]:
    """Every file below a folder: path (relative, `/`), bytes and sha256 (hex), in order."""
    listed = [
        {
            "path": path.relative_to(folder).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
        for path in folder.rglob("*")
        if path.is_file()
    ]
    return sorted(listed, key=lambda file: str(file["path"]))


def state_of(folder: Path) -> str:
    """SHA-256 (hex) over the paths, inodes, sizes and times of change of all files below a folder.

    It is another one after a file was written to, replaced, added or removed. No file is read. A
    manifest does not count: its time says when the artifact was used.
    """
    digest = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders.sort()
        digest.update(os.fsencode(os.path.relpath(place, folder)))
        for name in sorted(set(names) - {MANIFEST}):
            with suppress(FileNotFoundError):
                status = os.stat(os.path.join(place, name))  # noqa: PTH116, PTH118  millions of them
                now = (name, status.st_ino, status.st_size, status.st_mtime_ns)
                digest.update(os.fsencode(f"\0{now}"))
    return digest.hexdigest()
