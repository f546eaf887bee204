"""Classifies the units of an input and writes a file for each, which a killed run leaves behind."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from retrain import atomic
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
        only_sample: Whether only those of the sample are classified, for which simple facts are
            recorded too (`tasks/data/image_facts.py`).
    """

    model: str
    package: Path
    source: Source
    rows: int
    only_sample: bool = False

    def images(self, unit: Unit) -> Iterator[Image]:
        """The images of a unit that are classified."""
        for image in read(self.source, unit):
            if not self.only_sample or self.is_sampled(image):
                yield image

    def is_sampled(self, image: Image) -> bool:
        """Whether an image belongs to the sample; of copies of an image, as many as of others."""
        lot = image_facts.lot(image.path, image.sha256)
        return image.sha256 is not None and image_facts.is_sampled(lot, self.rows)

    def has_features(self, image: Image) -> bool:
        """Whether the features of an image are wanted, too."""
        lot = image_facts.lot(image.path, image.sha256)
        return image.sha256 is not None and image_facts.has_features(lot, self.rows)


@dataclass(frozen=True)
class Part:
    """A unit of the input, and the file for its answers: the columns of `schema`, and the facts."""

    unit: Unit
    file: Path


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
    """The same, and the features and the facts of an image of the sample; null for the others."""
    import pyarrow as pa

    facts = (pa.field(name, pa.float64()) for name in image_facts.FACTS)
    return pa.schema([*_with_features(), *facts])


def _with_features() -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([*schema(), image_facts.schema().field("features")])


class Worker:
    """Classifies units, as many at once as it is called; each call has a process of its own."""

    def __init__(self, job: Job, device: str) -> None:
        self._job, self._device = job, device
        self._idle: SimpleQueue[PackageProcess] = SimpleQueue()

    def __call__(self, part: Part) -> bool:
        """Writes a part, unless it is there.

        Returns:
            Whether it was there: with the same images, byte by byte.

        Raises:
            ValueError: The input or the package is broken.
        """
        if self._is_finished(part):
            return True
        process = self._process()
        try:
            self._write(part, process)
        except ValueError as error:
            if process.close.alive:
                process.close()
            raise ValueError(f"{self._job.model}: {error}") from error
        self._idle.put(process)
        return False

    def _process(self) -> PackageProcess:
        try:
            return self._idle.get_nowait()
        except Empty:
            package = self._job.package
            return PackageProcess(package, package, self._device)

    def _is_finished(self, part: Part) -> bool:
        import pyarrow as pa

        if not part.file.exists():
            return False
        try:
            there = _images_of(part.file)
            return all(
                image is not None and (image.path, image.sha256) == was
                for image, was in zip_longest(self._job.images(part.unit), there)
            )
        except (OSError, pa.ArrowInvalid):  # the file is damaged
            return False

    def _write(self, part: Part, process: PackageProcess) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with (
            atomic.replacing(part.file) as aside,
            pq.ParquetWriter(aside, schema_of_parts(), write_page_checksum=True) as writer,
        ):
            for images in portions(self._job.images(part.unit)):
                answers = _answers(images, [*map(self._job.has_features, images)], process)
                facts = [
                    (image_facts.measure(image.data) if self._job.is_sampled(image) else None) or {}
                    for image in images
                ]
                for name in image_facts.FACTS:
                    column = pa.array([each.get(name) for each in facts], pa.float64())
                    answers = answers.append_column(name, column)
                writer.write_batch(answers)


def _images_of(file: Path) -> Iterator[tuple[str, str | None]]:
    """The path and the SHA-256 of each image in a part, all of which is read."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
        for batch in parquet.iter_batches():
            yield from zip(batch["path"].to_pylist(), batch["sha256"].to_pylist(), strict=True)


def _answers(
    images: Sequence[Image], with_features: Sequence[bool], process: PackageProcess
) -> "pa.RecordBatch":
    """The rows of some images, and the features of those of which they are wanted."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    there = np.array([image.error is None for image in images])
    columns = {
        "path": pa.array([image.path for image in images], pa.string()),
        "sha256": pa.array([image.sha256 for image in images], pa.string()),
        "error": pa.array([image.error for image in images], pa.string()),
    }
    if there.any():
        sent = [
            (image.data, wanted)
            for image, wanted in zip(images, with_features, strict=True)
            if image.error is None
        ]
        given = process.classify(*map(list, zip(*sent, strict=True)))
        # An image whose file cannot be read was not sent: its index is null, and so is its answer.
        index = pa.array(np.cumsum(there) - 1, mask=~there)
        columns["error"] = pc.coalesce(columns["error"], given["error"].take(index))
        for name in ("label", "features"):
            columns[name] = given[name].take(index)
        lists = given["probabilities"].cast(pa.list_(pa.float32())).take(index)
        nothing = pa.scalar(None, lists.type)
        columns["probabilities"] = pc.if_else(pc.is_valid(columns["label"]), lists, nothing)
    else:
        for name in ("label", "probabilities", "features"):
            columns[name] = pa.nulls(len(images), _with_features().field(name).type)
    rows = _with_features()
    return pa.RecordBatch.from_arrays([columns[name] for name in rows.names], schema=rows)
