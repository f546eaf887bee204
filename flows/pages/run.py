"""What the pages of all runs have in common: the files of its steps, how it ended, and why."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.messages import local_time
from retrain.outputs import MANIFEST
from retrain.params import workload_names
from retrain.project import Project
from retrain.runs.records import Document
from retrain.store import Store


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
    """The outputs of a run's steps that are still in the store."""
    store, here, gone = Store.of(project), dict[str, Path](), list[str]()
    for step in document.get("steps", ()):
        artifact = store.find(step["step"], step["key"]) if step["path"] else None
        if artifact:
            here[artifact.step] = artifact.folder
        elif step["path"]:
            gone.append(step["step"])
    return Files(here, gone)


def verdict(name: str, sentence: str, mark: str, style: str) -> dict[str, str]:
    """How a run ended, in a word, in a sentence, by a sign, and by a class of `style.css`."""
    return {"name": name, "sentence": sentence, "mark": mark, "style": style}


def failed_verdict(document: Document) -> dict[str, str]:
    """Whether the data of a run that failed was refused, or the run broke off."""
    if document.get("refused"):  # documents of earlier versions do not say it
        return verdict("Refused", "The data does not pass its checks.", "✗", "bad")
    return verdict("Failed", "The run failed.", "✗", "bad")


def content(
    project: Project, document: Document, files: Files, ended: Mapping[str, str]
) -> dict[str, Any]:
    """What is shown of any run, which may have failed at any step.

    Args:
        project: The clone.
        document: Of the run.
        files: Of its steps.
        ended: The verdict.
    """
    name, steps = document["workload"], document.get("steps", ())
    entry = name if name in workload_names(project.params) else f"ENTRY --as {name}"
    made = [files.manifest(step)["provenance"] for step in ("train", "validate") if files.has(step)]
    origin = f"{name} · {document['flow']} · run {document['run'][:8]}"
    return {
        "title": f"{name}: {ended['name']}",
        "origin": f"{origin} · {local_time(document['time'])}",
        "verdict": ended,
        "document": document,
        "command": document.get("command") or f"retrain {document['flow']} {entry}",
        "missing": files.missing,
        "folders": files.folders,
        "steps": [
            (step["step"], "cached" if step["cached"] else "ran", f"{step['seconds']:.1f}",
             step["why"])
            for step in steps
        ],
        "machine": _machine(made[0]) if made else (),
    }  # fmt: skip


def _machine(provenance: Mapping[str, Any]) -> list[tuple[str, Any]]:
    machine = provenance["machine"]
    return [
        ("processor", machine["processor"]),
        ("cores", machine["cores"]),
        ("memory", f"{machine['memory_gb']} GB"),
        ("accelerators", ", ".join(machine["accelerators"]) or "none"),
        ("commit", provenance["commit"] or "unknown"),
        ("uncommitted changes", "yes" if provenance["uncommitted"] else "no"),
    ]


def title_of(model: Mapping[str, Any]) -> str:
    """A version, as a document has it, for people."""
    return f"{model['name']} version {model['version']}"
