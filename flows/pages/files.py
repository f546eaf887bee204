"""Finds the files of a run's steps in the store."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.outputs import MANIFEST
from retrain.runs.records import Document


@dataclass(frozen=True)
class Files:
    """Where the outputs of a run's steps are.

    Attributes:
        folders: By step; without those whose output is gone, or that leave none.
    """

    folders: Mapping[str, Path]

    def has(self, *steps: str) -> bool:
        """Whether the outputs of all of these steps are there."""
        return set(steps) <= self.folders.keys()

    def json(self, step: str, name: str) -> Any:
        """A file of a step, which is there."""
        return json.loads((self.folders[step] / name).read_text(encoding="utf-8"))

    def manifest(self, step: str) -> Any:
        """The manifest of a step, which is there."""
        return self.json(step, MANIFEST)


def files_of(document: Document) -> Files:
    """The outputs of a run's steps that are still in the store."""
    folders = {step["step"]: Path(step["path"]) for step in document["steps"] if step["path"]}
    return Files({name: folder for name, folder in folders.items() if folder.is_dir()})
