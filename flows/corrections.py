"""Takes labels that people have given over into the corrections beside a workload's data.

retrain labels vit reports/vit/suspects-1a2b3c4d.csv [--dry-run | --yes]

It is no Prefect flow: a person runs it, and puts the new version of the data under DVC.
"""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from retrain.params import load_workload
from retrain.project import Project
from retrain.registry.ledger import who
from retrain.workload import Data
from tasks import corrections
from tasks.corrections import Change


@dataclass(frozen=True)
class Import:
    """What has to be done to take labels over.

    Attributes:
        root: The folder of the data.
        by: Who takes them over.
        changes: The labels that change.
        read: How many labels were read; the data has the others already.
        commands: What the person does then.
    """

    root: Path
    by: str
    changes: Sequence[Change]
    read: int
    commands: Sequence[str]

    def document(self, is_applied: bool) -> dict[str, Any]:
        """The import, as `--json` prints it."""
        return {
            "read": self.read,
            "changes": [
                {"path": change.path, "before": change.before, "after": change.after}
                for change in self.changes
            ],
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
        """Changes the labels, all of them or none."""
        corrections.apply(self.root, self.changes, self.by)


def plan(project: Project, workload: str, file: Path) -> Import:
    """Checks all that an import would change; changes nothing.

    Args:
        project: The clone.
        workload: An entry of `params.yaml`.
        file: A review list that a person has filled, as `tasks.corrections` reads it.

    Raises:
        UsageError: The file cannot be read, or an image has changed; or the data is at a place
            where labels cannot be changed.
    """
    data = load_workload(project.params, workload).data
    labelled = corrections.read(file)
    root = _root(project, data)
    changes = corrections.plan(root, data, labelled)
    commands = [f"retrain train {workload}"]
    if root.is_relative_to(project.root / "data"):
        part = shlex.quote(root.relative_to(project.root).as_posix())
        message = f"Labels of {workload}: {len(changes)} changed"
        # Of this part alone: the rest of data/ may not be here, and stays as it is pinned.
        commands = [f"dvc add {part}", f"git add data.dvc && git commit -m '{message}'"]
    by = ""
    with suppress(ValueError, FileNotFoundError):  # there is no such name, or no git
        by = project.git("config", "user.name")
    return Import(root, by or who(), changes, len(labelled), commands)


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
