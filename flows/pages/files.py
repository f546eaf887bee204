"""Finds the files of a run's steps in the store."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.outputs import MANIFEST
from retrain.project import Project
from retrain.runs.records import Document
from retrain.store import Store


@dataclass(frozen=True)
class Files:
    """Where the outputs of a run's steps are.

    Attributes:
        recorded: By step, where its output was; without those that leave none.
        folders: Those that are still there.
    """

    recorded: Mapping[str, Path]
    folders: Mapping[str, Path]

    def has(self, *steps: str) -> bool:
        """Whether the outputs of all of these steps are there."""
        return set(steps) <= self.folders.keys()

    def json(self, step: str, name: str) -> Any:
        """A file of a step, which is there."""
        return json.loads((self.folders[step] / name).read_text(encoding="utf-8"))

    def missing(self) -> list[str]:
        """The steps whose output is gone."""
        return [step for step in self.recorded if step not in self.folders]

    def manifest(self, step: str) -> Any:
        """The manifest of a step, which is there."""
        return self.json(step, MANIFEST)


def files_of(project: Project, document: Document) -> Files:
    """The outputs of a run's steps that are still in the store."""
    steps = [step for step in document["steps"] if step["path"]]
    recorded = {step["step"]: Path(step["path"]) for step in steps}
    found = [Store.of(project).find(step["step"], step["key"]) for step in steps]
    return Files(recorded, {artifact.step: artifact.folder for artifact in found if artifact})
