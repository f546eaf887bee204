"""Classifies the units of an input and writes a file for each, which a killed run leaves behind."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from retrain import atomic
from retrain.step import digest_of
from tasks.compute.served import PackageProcess, portions
from tasks.data import image_facts
from tasks.data.raw_dataset import Unit
from tasks.predict.inputs import Image, Source, read

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Job:
    """What classifies which images; cheap to send to a worker of Ray.

    Attributes:
        model: The version's name for people.
        package: Its folder.
        source: The images.
        rows: How many there are, of which the sample is a part.
        only_sample: Whether only the images of the sample are classified.
        folder: Where the files of the finished units are.
    """

    model: str
    package: Path
    source: Source
    rows: int
    only_sample: bool
    folder: Path

    def file(self, unit: Unit) -> Path:
        """The file of a unit, with the columns of `schema_of_parts`."""
        return self.folder / f"{digest_of([asdict(piece) for piece in unit.pieces])}.parquet"

    def images(self, unit: Unit) -> Iterator[Image]:
        """The images of a unit that are classified."""
        for image in read(self.source, unit):
            if not self.only_sample or self.is_sampled(image):
                yield image

    def is_sampled(self, image: Image) -> bool:
        """Whether an image belongs to the sample; of copies of an image, as many as of others."""
        lot = image_facts.lot(image.path, image.sha256)
        return image.error is None and image_facts.is_sampled(lot, self.rows)

    def has_features(self, image: Image) -> bool:
        """Whether the features of an image are wanted, too."""
        lot = image_facts.lot(image.path, image.sha256)
        return image.error is None and image_facts.has_features(lot, self.rows)


def schema() -> "pa.Schema":
    """The columns of the answers; a row is an image.

    The probabilities are in the order of the package's classes. An image that cannot be read, or
    that the package refuses, has an error in their place and in that of the label.
    """
    import pyarrow as pa

    return pa.schema(
        {
            "path": pa.string(),
            "label": pa.string(),
            "probabilities": pa.list_(pa.float32()),
            "sha256": pa.string(),
            "error": pa.string(),
        }
    )


def schema_of_parts() -> "pa.Schema":
    """The columns of a unit's file: of the answers, and of the sample for the images in it."""
    import pyarrow as pa

    return pa.unify_schemas([schema(), image_facts.schema()])


class Worker:
    """Classifies units, as many at once as it is called; each call has a process of its own."""

    def __init__(self, job: Job, device: str) -> None:
        self._job, self._device = job, device
        self._idle: SimpleQueue[PackageProcess] = SimpleQueue()

    def __call__(self, unit: Unit) -> bool:
        """Writes the file of a unit, unless it is there.

        Returns:
            Whether it was there.

        Raises:
            ValueError: The input or the package is broken.
        """
        import pyarrow.parquet as pq

        file = self._job.file(unit)
        if file.exists():
            return True
        try:
            process = self._idle.get_nowait()
        except Empty:
            package = self._job.package
            process = PackageProcess(package, package, self._device)
        try:
            with (
                atomic.replacing(file) as aside,
                pq.ParquetWriter(aside, schema_of_parts()) as writer,
            ):
                for images in portions(self._job.images(unit)):
                    writer.write_batch(_answers(self._job, images, process))
        except ValueError as error:
            raise ValueError(f"{self._job.model}: {error}") from error
        self._idle.put(process)
        return False


def _answers(job: Job, images: Sequence[Image], process: PackageProcess) -> "pa.RecordBatch":
    """The rows of some images.

    An image whose file cannot be read is sent without content, which the package refuses.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    given = process.classify([image.data for image in images], [*map(job.has_features, images)])
    errors = pa.array([image.error for image in images], pa.string())
    is_answered = given["label"].is_valid()
    probabilities = given["probabilities"]
    highest = probabilities.flatten().to_numpy().reshape(len(images), -1).max(axis=1)
    lists = probabilities.cast(pa.list_(pa.float32()))
    facts = [
        (image_facts.measure(image.data) if job.is_sampled(image) else None) or {}
        for image in images
    ]
    columns = {
        "path": pa.array([image.path for image in images], pa.string()),
        "label": given["label"],
        "probabilities": pc.if_else(is_answered, lists, pa.scalar(None, lists.type)),
        "sha256": pa.array([image.sha256 for image in images], pa.string()),
        "error": pc.coalesce(errors, given["error"]),
        "confidence": highest,
        "features": given["features"],
    }
    columns |= {name: [of.get(name) for of in facts] for name in image_facts.FACTS}
    return pa.RecordBatch.from_pydict(columns, schema_of_parts())
