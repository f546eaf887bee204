"""What the page of a training, or of the checks of data, shows beside the document of the run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flows.pages import answers, data
from retrain.outputs import MANIFEST
from retrain.project import Project
from retrain.runs.records import Document
from retrain.step import REPORT
from retrain.store import Artifact
from tasks.data import thumbnails
from tasks.promote import outcome
from tasks.train.job import FIRST_BATCH


def content(project: Project, document: Document, made: Mapping[str, Artifact]) -> dict[str, Any]:
    """What the files of a run of `train` or `validate` add, which may have failed at any step.

    Args:
        project: The clone.
        document: As `flows.reports.training` makes it.
        made: The outputs of its steps that are still there.
    """
    found: dict[str, Any] = {"data": data.content(project, document, made)}
    if document.get("decision") and document["model"]:
        slices = sorted(document["decision"]["slices"], key=lambda row: float(row["accuracy"]))
        found["slices"] = [(row, outcome.slice_row(row)) for row in slices]
        found["rules"] = outcome.rules(document)
    if "compare_champion" in made:
        plan = _read(made["compare_champion"].folder / MANIFEST)["plan"]
        found["margin"] = plan["config"]["gate.margin"]
    if "train" in made:
        found["history"] = _read(made["train"].folder / REPORT / "history.json")
        found["precision"] = outcome.precision(made["train"].facts)
        found["first_images"] = _first_images(made["train"].folder / REPORT / FIRST_BATCH)
    if "evaluate" in made:
        found["classes"] = _read(made["evaluate"].folder / "classes.json")["classes"]
    if {"evaluate", "preprocess"} <= made.keys():
        found["answers"] = answers.content(made)
    return found


def _first_images(file: Path) -> list[Any]:
    """The first images that the network saw, as a gallery has them; of the project's own loop."""
    if not file.exists():
        return []
    with np.load(file) as kept:
        seen = zip(kept["images"], kept["labels"].tolist(), strict=True)
        return [([thumbnails.of_array(pixels, name)], [(name, "")]) for pixels, name in seen]


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))
