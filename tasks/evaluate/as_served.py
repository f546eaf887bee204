"""Classifies the test split with the package of a registered version, on any machines.

A part of the split are the test images of some units of the data. Its answers become a file in the
scratch folder, so that a run that was killed goes on with the missing ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa

from retrain import atomic
from retrain.runs import console
from retrain.step import Workspace
from tasks.compute import served
from tasks.compute.ray_data import map_with_workers
from tasks.data import image_table, package
from tasks.data.image_table import AcceptedImage, read_images
from tasks.data.reading import ImageFiles, places_of
from tasks.data.units import WORTH_ROWS, Unit, cut
from tasks.evaluate import predictions
from tasks.evaluate.predictions import Answers

SPLIT = "test"


@dataclass(frozen=True)
class Part:
    """Images of the test split that follow each other.

    Attributes:
        unit: Which rows of the split they are, and how large.
        file: Gets the answers, as `predictions.write` writes them.
    """

    unit: Unit
    file: Path


@dataclass(frozen=True)
class Job:
    """What classifies the test split; cheap to send to a worker of Ray.

    Attributes:
        package: A folder as `mlflow.pyfunc.save_model` writes it.
        files: Reads the images of the data.
        images: The test images.
    """

    package: Path
    files: ImageFiles
    images: pa.Table


class Worker:
    """Classifies parts, as many at once as it is called; each call has a process of its own."""

    def __init__(self, job: Job, device: str) -> None:
        self._job = job
        self._pool = served.PackagePool(job.package, job.package, device)

    def __call__(self, part: Part) -> None:
        """Writes the answers for a part.

        Raises:
            ValueError: An image has changed, or the package does not answer.
        """
        rows = self._job.images.slice(part.unit.first, part.unit.rows)
        read = read_images(self._job.files, rows)
        answers = map(self._answers, served.portions(_unchanged(read)))
        with atomic.replacing(part.file) as aside:
            predictions.write(answers, self._pool.classes, aside)

    def _answers(self, images: Sequence[AcceptedImage]) -> Answers:
        answer = served.serve(images, self._pool)
        place = {name: index for index, name in enumerate(answer.known)}
        columns = {name: [getattr(image, name) for image in images] for name in predictions.COLUMNS}
        best = np.array([place[label] for label in answer.labels], np.int64)
        return Answers(pa.RecordBatch.from_pydict(columns), best, answer.probabilities)


def _unchanged(images: Iterable[AcceptedImage]) -> Iterator[AcceptedImage]:
    """The images, each if it is the one that was checked."""
    for image in images:
        if sha256(image.data).hexdigest() != image.sha256:
            raise ValueError(f"{image.path} has changed since it was checked.")
        yield image


def classify(
    name: str, folder: Path, files: ImageFiles, validated: Path, workspace: Workspace
) -> None:
    """Classifies the test split and writes `predictions.parquet`.

    The answers do not depend on the machines, or on how many processes there are.

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
    job = Job(served.where_all_see_it(folder, workspace.scratch), files, images)
    tasks = served.ROWS_PER_PROCESS / WORTH_ROWS
    units = cut(files, places_of(images), images["bytes"].to_pylist(), tasks)
    parts = [Part(unit, workspace.scratch / f"{unit.first:09}.parquet") for unit in units]
    missing = [part for part in parts if not part.file.exists()]
    per_image = served.seconds_per_image(folder)
    with console.counted(name, sum(part.unit.rows for part in missing)) as show:
        map_with_workers(
            partial(Worker, job),
            missing,
            seconds=sum(part.unit.seconds + part.unit.rows * per_image for part in missing),
            done=lambda part: show(part.unit.rows),
        )
    answers = [part.file for part in parts]
    predictions.join(answers, list(package.classes_of(folder)), workspace.folder)
