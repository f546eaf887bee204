"""Reads corrected labels: an export of Label Studio, or the CSV file of listed images.

Both come from the files that `tasks/data/review_list.py` writes, so that each image is known by
its file, its row there, and its SHA-256. Label Studio's own CSV has the same columns, and more.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrain.errors import UsageError
from tasks.data.review_list import CORRECTED, TO_LABEL

NEEDED = ("why", "path", "file", "row", "sha256")
CONTROLS = (CORRECTED, "label")  # the second is that of tasks of earlier versions


@dataclass(frozen=True)
class Correction:
    """The label that a person has given to an image.

    Attributes:
        path: The name of the image in reports.
        file: The file that holds it: of the data, or of the images that were to be labelled.
        row: Its row in the file.
        sha256: SHA-256 (hex) of the encoded image.
        label: The name of its class.
        is_new: Whether the image was to be labelled, and so is not in the data yet.
    """

    path: str
    file: str
    row: int
    sha256: str
    label: str
    is_new: bool


def read(file: Path) -> list[Correction]:
    """Reads the images that have a label of a person.

    Args:
        file: An export of Label Studio in its format JSON, JSON-MIN or CSV, or the CSV file that
            was written, whose column `corrected` a person has filled.

    Raises:
        UsageError: There is no such file, it lacks something, or an image has two labels.
    """
    if not file.is_file():
        raise UsageError(f"{file}: there is no such file.")
    try:
        labelled = [*(_tasks if file.suffix.lower() == ".json" else _rows)(file)]
        found = [
            Correction(
                path=row["path"],
                file=row["file"],
                row=int(row["row"]),
                sha256=row["sha256"],
                label=label,
                is_new=row["why"] == TO_LABEL,
            )
            for row, label in labelled
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise UsageError(
            f"{file} cannot be read: {reason}. It should be an export of Label Studio in its "
            "format JSON, JSON-MIN or CSV, or a CSV file with the columns "
            f"{', '.join((*NEEDED, CORRECTED))}."
        ) from None
    return [*_each_once(found)]


def _rows(file: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The filled rows of a CSV file, and their labels."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        for row in csv.DictReader(lines):
            if label := row[CORRECTED].strip():
                yield row, label


def _tasks(file: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The data of the annotated tasks of an export of Label Studio, and their labels."""
    for task in json.loads(file.read_bytes()):
        if "sha256" not in task:
            for label in _choices(task):
                yield task["data"], label
        elif label := task.get(CORRECTED):  # JSON-MIN has it among the data
            yield task, str(label)


def _choices(task: Mapping[str, Any]) -> list[str]:
    """The labels of a task that were submitted; one that was skipped has none."""
    return [
        choice
        for annotation in task["annotations"]
        if not annotation.get("was_cancelled")
        for result in annotation["result"]
        if result["from_name"] in CONTROLS
        for choice in result["value"]["choices"]
    ]


def _each_once(corrections: Iterable[Correction]) -> Iterator[Correction]:
    """Leaves out what is said twice.

    Raises:
        UsageError: An image has two labels.
    """
    known: dict[tuple[str, int], Correction] = {}
    for correction in corrections:
        before = known.setdefault((correction.file, correction.row), correction)
        if before.label != correction.label:
            raise UsageError(
                f"{correction.path} is labelled {before.label} and {correction.label}: decide on "
                "one."
            )
    return iter(known.values())
