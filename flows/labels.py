"""Takes corrected labels over into the data of a workload.

retrain labels import vit suspects.csv [--dry-run | --yes]

It is no Prefect flow: a person runs it, and puts the new version of the data under DVC.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.pages import page
from retrain.errors import UsageError
from retrain.faults import did_you_mean
from retrain.params import load_workload
from retrain.project import Project
from retrain.workload import Data
from tasks.data import class_folders, listed_images, parquet_files
from tasks.data.formats import recognise
from tasks.data.listing import list_files
from tasks.data.raw_dataset import RawDataset, RawImage, open_format
from tasks.labels import corrections, folders, parquet, tables
from tasks.labels.corrections import Correction
from tasks.validate.label_names import LabelNames


@dataclass(frozen=True)
class Change:
    """The label of an image that changes.

    Attributes:
        path: The name of the image in reports.
        before: Its class so far, as the data names it; None for a new image.
        after: Its class from now on.
    """

    path: str
    before: str | None
    after: str


@dataclass(frozen=True)
class Import:
    """What has to be done to take labels over.

    Attributes:
        changes: The labels that change.
        read: How many labels were read; the data has the others already.
        steps: Does the work, a file at a time; each step is done as a whole or not at all.
        commands: What the person does then.
    """

    changes: Sequence[Change]
    read: int
    steps: Sequence[Callable[[], None]]
    commands: Sequence[str]

    def document(self, is_applied: bool) -> dict[str, Any]:
        """The import, as `--json` prints it."""
        return {
            "read": self.read,
            "changes": [vars(change) for change in self.changes],
            "classes": self.classes,
            "applied": is_applied,
            "next": list(self.commands),
        }

    @property
    def classes(self) -> dict[str, dict[str, int]]:
        """How many images leave each class, and how many come to it."""
        left = Counter(change.before for change in self.changes if change.before is not None)
        came = Counter(change.after for change in self.changes)
        return {name: {"leave": left[name], "come": came[name]} for name in sorted({*left, *came})}

    def apply(self) -> None:
        """Changes the data; if it is killed, the same import goes on where it was."""
        for step in self.steps:
            step()


def plan(project: Project, workload: str, file: Path) -> Import:
    """Checks all that an import would change; changes nothing.

    Args:
        project: The clone.
        workload: An entry of `params.yaml`.
        file: An export of Label Studio, or a CSV file, as `tasks.labels.corrections` reads it.

    Raises:
        UsageError: The file cannot be read, or an image has changed; or the data is at a place
            where labels cannot be changed.
    """
    config = load_workload(project.params, workload)
    labelled = corrections.read(file)
    root = _root(project, config.data)
    form: str = config.data.format
    if form == "auto":
        form = recognise(root, [name for name, _ in list_files(root)])
    data = open_format(form, root, config.data.image_column, config.data.label_column)
    labels = _labels(data, config.data, labelled)
    images = page.folder_of(project, workload)
    changes, steps = _changes(data, labelled, labels, images)
    return Import(changes, len(labelled), steps, _commands(project, root, workload, len(changes)))


def _root(project: Project, data: Data) -> Path:
    """The folder of the data on this machine.

    Raises:
        UsageError: It is elsewhere, or an archive.
    """
    place = Path(os.path.normpath(project.root / Path(data.path).expanduser()))
    if data.format == "hub" or "://" in data.path:
        raise UsageError(
            f"The labels of {data.path} cannot be changed from here: correct them where it is."
        )
    if not place.exists() and place.is_relative_to(project.root / "data"):
        raise UsageError(f"{data.path} is not here as files yet: dvc pull data.dvc")
    if not place.is_dir():
        raise UsageError(f"{data.path} is no folder: labels are changed in folders of files.")
    return place


def _labels(data: RawDataset, settings: Data, labelled: Sequence[Correction]) -> Mapping[str, str]:
    """What the data calls each of its classes, by the names that people see.

    Raises:
        UsageError: Somebody has named a class that the data does not have.
    """
    names = LabelNames(data.root, settings.label_names)
    classes = sorted({label for label, _ in data.labels() if label is not None})
    labels = {str(names.of(RawImage("", 0, "", name, None, b""))): name for name in classes}
    for correction in labelled:
        if correction.label not in labels:
            raise UsageError(
                f"{correction.path} is labelled {correction.label!r}, which is no class of the "
                f"data.{did_you_mean(correction.label, labels)}"
            )
    return labels


def _changes(
    data: RawDataset, labelled: Sequence[Correction], labels: Mapping[str, str], images: Path
) -> tuple[list[Change], list[Callable[[], None]]]:
    """What changes, and what does it."""
    if data.format == "folders":
        assert isinstance(data, class_folders.Images)
        moves = folders.plan(data, labelled, labels, images)
        changes = [Change(move.path, move.before, move.after) for move in moves]
        return changes, [move.apply for move in moves]
    if any(correction.is_new for correction in labelled):
        raise UsageError(
            f"The data is of the format {data.format}, to which no images are added here: add them "
            "with their labels to its files."
        )
    edits: Sequence[parquet.Edit | tables.Edit]
    if data.format == "table":
        assert isinstance(data, listed_images.Images)
        edits = tables.plan(data, labelled, labels)
    else:
        assert isinstance(data, parquet_files.Images)
        edits = parquet.plan(data, labelled, labels)
    return [Change(*each) for edit in edits for each in edit.changes], [e.apply for e in edits]


def _commands(project: Project, root: Path, workload: str, count: int) -> list[str]:
    if not root.is_relative_to(project.root / "data"):
        return [f"retrain train {workload}"]
    return [
        "dvc add data",
        f"git add data.dvc && git commit -m 'Labels of {workload}: {count} changed'",
    ]
