"""Finds the files of a run's steps in the store."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.errors import DamagedArtifactError, RemoteError
from retrain.outputs import MANIFEST
from retrain.project import Project
from retrain.runs.records import Document
from retrain.store import Store

IMAGES = ("pull", "preprocess", "embed")  # the steps whose outputs may be large


@dataclass(frozen=True)
class Files:
    """Where the outputs of a run's steps are.

    Attributes:
        folders: By step, the outputs that are there.
        missing: The steps whose output is gone.
    """

    folders: Mapping[str, Path]
    missing: Sequence[str]

    def has(self, *steps: str) -> bool:
        """Whether the outputs of all of these steps are there."""
        return set(steps) <= self.folders.keys()

    def json(self, step: str, name: str) -> Any:
        """A file of a step, which is there."""
        return json.loads((self.folders[step] / name).read_text(encoding="utf-8"))

    def manifest(self, step: str) -> Any:
        """The manifest of a step, which is there."""
        return self.json(step, MANIFEST)


def files_of(project: Project, document: Document) -> Files:
    """The outputs of a run's steps that are still in the store.

    Those that other machines have made are fetched, but for `IMAGES`.
    """
    store, here, gone = Store.of(project), dict[str, Path](), list[str]()
    for step in document.get("steps", ()):
        artifact = store.find(step["step"], step["key"]) if step["path"] else None
        if artifact and step["step"] not in IMAGES:
            with suppress(DamagedArtifactError, RemoteError):  # a page does without
                store.fetch(artifact)
        if artifact and not store.missing(artifact.step, artifact.key):
            here[artifact.step] = artifact.folder
        elif step["path"]:
            gone.append(step["step"])
    return Files(here, gone)
