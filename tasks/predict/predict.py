"""Classifies an input with a registered version, and writes one Parquet file in the input's order.

The work is a plan over the units of the input (`tasks/compute/ray_data.py`): actors of Ray Data for
much of it, threads of this process for little, each with a process beside it that has loaded the
package. Each unit becomes a file in the scratch folder. A run that was killed goes on with the
missing ones if the input lists the same images, and the file that it writes at its end is the same,
byte by byte.
"""

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retrain import atomic
from retrain.code import code_digests
from retrain.errors import UsageError
from retrain.runs import console
from retrain.step import digest_of
from retrain.store import Store
from tasks.compute.ray_data import map_with_workers
from tasks.compute.served import (
    PackagePool,
    other_versions,
    portions,
    seconds_per_image,
    where_all_see_it,
)
from tasks.data import image_facts, package
from tasks.data.champion import Registered
from tasks.data.units import Unit
from tasks.predict.inputs import Image, Source, digest_of_images, read

logger = logging.getLogger(__name__)

NAME = "predict"
LIBRARIES = (
    "mlflow", "numpy", "pandas", "pillow", "pyarrow", "torch", "transformers",
)  # fmt: skip


def predict(
    registered: Registered, source: Source, output: Path, store: Store
) -> tuple[dict[str, Any], pa.Table]:
    """Classifies all images of an input.

    Args:
        registered: The version that classifies.
        source: The input.
        output: The Parquet file that is written, at the end and as a whole.
        store: The scratch folder in it keeps the finished units of a run that is killed.

    Returns:
        What was written, JSON-able: `rows`, how many images; `errors`, how many of them have no
        label; `labels`, how many have each label that any has; `accepted`, how many the package
        accepts, None if it does not say; `images`, SHA-256 (hex) over the paths and the contents of
        the images; and `reused`, how many units an earlier run, which was killed, had finished. And
        a sample of the images as `tasks.data.image_facts.schema` has it.

    Raises:
        ValueError: A file of the input is broken, or the package is.
    """
    with _classified(registered, source, store) as (files, reused):
        metadata = {
            "labels": json.dumps(list(package.classes_of(registered.package))),
            "retrain.model": registered.version.name,
            "retrain.version": str(registered.version.version),
            "retrain.package": registered.digest,
        }
        written = _join(files, output, metadata) | {"reused": reused}
        if registered.version.min_confidence is None:
            written["accepted"] = None
        return written, _sample(files)


def sample(registered: Registered, source: Source, store: Store) -> pa.Table:
    """Classifies a sample of an input; the arguments and the errors of `predict`.

    Returns:
        The sample, as `tasks.data.image_facts.schema` has it.
    """
    with _classified(registered, source, store, only_sample=True) as (files, _):
        return _sample(files)


def schema() -> pa.Schema:
    """The columns of the answers; a row is an image.

    The probabilities are in the order of the package's classes; `accepted` is null if the package
    does not say it. An image that cannot be read, or that the package refuses, has an error in
    their place and in that of the label.
    """
    return pa.schema(
        {
            "path": pa.string(),
            "label": pa.string(),
            "probabilities": pa.list_(pa.float32()),
            "accepted": pa.bool_(),
            "sha256": pa.string(),
            "error": pa.string(),
        }
    )


@dataclass(frozen=True)
class Job:
    """The package, and the images that it classifies; cheap to send to a worker of Ray.

    Attributes:
        model: The version's name for people.
        package: The folder of the version's package.
        source: The images.
        rows: How many there are, of which the sample is a part.
        only_sample: Whether only the images of the sample are classified.
        folder: The folder with the files of the finished units.
    """

    model: str
    package: Path
    source: Source
    rows: int
    only_sample: bool
    folder: Path

    def file(self, unit: Unit) -> Path:
        """The file of a unit: the columns of `schema`, and those of the sample."""
        return self.folder / f"{unit.first:09}.parquet"

    def images(self, unit: Unit) -> Iterator[Image]:
        """The images of a unit that are classified."""
        for image in read(self.source, unit):
            if not self.only_sample or self.is_sampled(image):
                yield image

    def is_sampled(self, image: Image) -> bool:
        """Whether an image belongs to the sample; copies of an image are sampled like others."""
        lot = image_facts.lot(image.path, image.sha256)
        return image.error is None and image_facts.is_sampled(lot, self.rows)

    def has_features(self, image: Image) -> bool:
        """Whether the features of an image are wanted, too."""
        lot = image_facts.lot(image.path, image.sha256)
        return image.error is None and image_facts.has_features(lot, self.rows)


class Worker:
    """Classifies units, as many at once as it is called; each call has a process of its own."""

    def __init__(self, job: Job, device: str) -> None:
        self._job = job
        self._package = PackagePool(job.package, job.package, device)

    def __call__(self, unit: Unit) -> bool:
        """Writes the file of a unit, unless it is there.

        Returns:
            Whether it was there.

        Raises:
            ValueError: The input or the package is broken.
        """
        file = self._job.file(unit)
        if file.exists():
            return True
        columns = pa.unify_schemas([schema(), image_facts.schema()])
        try:
            with atomic.replacing(file) as aside, pq.ParquetWriter(aside, columns) as writer:
                for images in portions(self._job.images(unit)):
                    answers = _answers(self._job, images, self._package)
                    writer.write_batch(pa.RecordBatch.from_pydict(answers, columns))
        except ValueError as error:
            raise ValueError(f"{self._job.model}: {error}") from error
        return False


def _answers(job: Job, images: Sequence[Image], pool: PackagePool) -> dict[str, Any]:
    """The rows of some images, by column.

    An image whose file cannot be read is sent without content, which the package refuses.
    """
    answers = pool.classify([image.data for image in images], [*map(job.has_features, images)])
    errors = pa.array([image.error for image in images], pa.string())
    probabilities = answers["probabilities"]
    highest = probabilities.flatten().to_numpy().reshape(len(images), -1).max(axis=1)
    lists = probabilities.cast(pa.list_(pa.float32()))
    nothing = pa.scalar(None, lists.type)
    facts = [
        (image_facts.measure(image.data) if job.is_sampled(image) else None) or {}
        for image in images
    ]
    return {
        "path": [image.path for image in images],
        "label": answers["label"],
        "probabilities": pc.if_else(answers["label"].is_valid(), lists, nothing),
        "accepted": answers["accepted"],
        "sha256": [image.sha256 for image in images],
        "error": pc.coalesce(errors, answers["error"]),
        "confidence": highest,
        "features": answers["features"],
    } | {name: [row.get(name) for row in facts] for name in image_facts.FACTS}


@contextmanager
def _classified(
    registered: Registered, source: Source, store: Store, only_sample: bool = False
) -> Iterator[tuple[list[Path], int]]:
    """The files of the units, and how many were there; they are removed after the block."""
    folder, name = registered.package, registered.version.title
    if differing := other_versions(folder):
        logger.warning("%s was registered with other libraries: %s.", name, ", ".join(differing))
    units = source.units()
    key = _key(registered, source, units, only_sample)
    with store.lock(NAME, key):
        scratch = store.scratch(NAME, key)
        folder = where_all_see_it(folder, scratch)
        rows = sum(unit.rows for unit in units)
        job = Job(name, folder, source, rows, only_sample, scratch)
        with console.counted(NAME, rows) as show:
            reused = map_with_workers(
                partial(Worker, job),
                units,
                seconds=_seconds(folder, units),
                done=lambda unit: show(unit.rows),
            )
        yield [job.file(unit) for unit in units], sum(reused)
        shutil.rmtree(scratch)


def _key(
    registered: Registered, source: Source, units: Sequence[Unit], only_sample: bool = False
) -> str:
    """The key of the finished units, which cannot be used after a file of the input has changed."""
    modules = (__name__, "tasks.compute.answer")
    made_by = {
        "package": registered.digest,
        "code": code_digests(modules),
        "libraries": {name: installed(name) for name in LIBRARIES},
        "only_sample": only_sample,
        "state": source.state,
        "units": [astuple(unit) for unit in units],
        "images": source.images.places,
    }
    return digest_of(made_by)


def _seconds(folder: Path, units: Sequence[Unit]) -> float:
    """How long a core, or a GPU, takes for all images, roughly."""
    per_image = seconds_per_image(folder)
    return sum(unit.seconds + unit.rows * per_image for unit in units)


def _join(files: Sequence[Path], output: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Writes the rows of all units into one file, a unit at a time, and counts them."""
    rows, accepted, labels, images = 0, 0, Counter[str](), hashlib.sha256()
    with (
        atomic.replacing(output) as aside,
        pq.ParquetWriter(aside, schema().with_metadata(metadata)) as writer,
    ):
        for file in files:
            table = pq.read_table(file, columns=schema().names)
            writer.write_table(table.replace_schema_metadata(metadata))
            rows += len(table)
            accepted += pc.sum(table["accepted"], min_count=0).as_py()
            labels.update(table["label"].drop_null().to_pylist())
            images.update(digest_of_images(table))
        digest = images.hexdigest()
        writer.add_key_value_metadata({"retrain.images": digest})
    errors, counts = rows - labels.total(), dict(sorted(labels.items()))
    written = {"rows": rows, "errors": errors, "labels": counts}
    return written | {"accepted": accepted, "images": digest}


def _sample(files: Sequence[Path]) -> pa.Table:
    """The rows of the sample that have a label and facts."""
    columns = image_facts.schema()
    is_complete = pc.field("label").is_valid() & pc.field("side").is_valid()
    tables = [pq.read_table(file, columns=columns.names, filters=is_complete) for file in files]
    return pa.concat_tables([columns.empty_table(), *tables])


def read_origin(file: Path) -> dict[str, Any]:
    """Reads what a file that `predict` has written says of itself.

    Returns:
        `rows`, how many images it has; of the model that answered its name, `model`, its number,
        `version`, and the digest of its `package`; `images`, SHA-256 (hex) over the paths and the
        contents of the images, as it was written, and `unchanged`, whether the rows still have that
        digest. Both are None in a copy that lacks it: PyArrow does not copy what was added last.

    Raises:
        UsageError: There is no such file, or `predict` has not written it.
    """
    digest = hashlib.sha256()
    try:
        with pq.ParquetFile(file) as predictions:
            rows, metadata = predictions.metadata.num_rows, predictions.metadata.metadata or {}
            if b"retrain.model" not in metadata:
                raise UsageError(
                    f"{file} does not say which model wrote it: retrain predict writes that into "
                    "the metadata, and copies that other programs make may lack it."
                )
            for batch in predictions.iter_batches(columns=["path", "sha256"]):
                digest.update(digest_of_images(batch))
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{file} is no Parquet file that can be read: {error}") from error
    images = metadata.get(b"retrain.images", b"").decode() or None
    return {
        "rows": rows,
        "model": metadata[b"retrain.model"].decode(),
        "version": int(metadata[b"retrain.version"]),
        "package": metadata[b"retrain.package"].decode(),
        "images": images,
        "unchanged": images and digest.hexdigest() == images,
    }
