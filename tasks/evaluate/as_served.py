"""Classifies the test split with the package of a registered version."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from retrain.runs import console
from retrain.step import Workspace
from tasks.compute.asked import ask, rows_of
from tasks.data import image_table, package
from tasks.data.predictions import FILE
from tasks.data.reading import ImageFiles, places_of
from tasks.evaluate import predictions
from tasks.evaluate.predictions import Answers

SPLIT = "test"


def classify(
    name: str, folder: Path, files: ImageFiles, validated: Path, workspace: Workspace
) -> None:
    """Classifies the test split and writes `predictions.parquet`.

    A run that was killed goes on with the missing answers, which are in the scratch folder.

    Args:
        name: What the progress is shown with.
        folder: The package.
        files: Reads the images of the data.
        validated: The output of `validate`.
        workspace: The workspace of the step.

    Raises:
        ValueError: An image has changed since it was checked; or the package cannot be loaded, does
            not answer, or refuses an image.
    """
    images = image_table.read_split(validated, SPLIT)
    labels = [*package.classes_of(folder)]
    with console.counted(name, len(images)) as show:
        answered = ask(folder, files, places_of(images), workspace.scratch, show, keep=True)
        answers = _checked(images, answered, labels)
        predictions.write(images, answers, labels, workspace.folder / FILE)


def _checked(
    images: pa.Table, answered: Iterable[pa.Table], labels: list[str]
) -> Iterator[Answers]:
    """The answers, each if it is for the image that was checked."""
    first = 0
    for answers in answered:
        asked = images.slice(first, len(answers))
        first += len(answers)
        columns = (asked["path"], asked["sha256"], answers["sha256"], answers["error"])
        for path, checked, sha256, error in zip(*(c.to_pylist() for c in columns), strict=True):
            if sha256 is not None and sha256 != checked:
                raise ValueError(f"{path} has changed since it was checked.")
            if error is not None:
                raise ValueError(f"{path}: {error}")
        best = pc.index_in(answers["label"], pa.array(labels)).to_numpy().astype(np.int64)
        yield best, rows_of(answers, "probabilities")
