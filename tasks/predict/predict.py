"""Classifies an input with a registered version, and writes one Parquet file in the input's order.

The work is a plan over the units of the input (`tasks/compute/workers.py`): actors of Ray Data for
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
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING

from retrain import atomic
from retrain.code import code_digests
from retrain.hardware import gpu_capabilities
from retrain.runs import console
from retrain.servers import ray_cluster
from retrain.step import digest_of
from retrain.store import Store
from tasks.compute.served import other_versions
from tasks.compute.workers import map_units
from tasks.data import image_facts, package
from tasks.data.champion import Registered
from tasks.data.raw_dataset import READERS, Unit
from tasks.predict.inputs import Source, digest_of_images
from tasks.predict.parts import Job, Worker, schema

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

NAME = "predict"
LIBRARIES = (
    "mlflow", "numpy", "pandas", "pillow", "pyarrow", "torch", "transformers",
)  # fmt: skip
# How often a weight takes part in a forward pass, and what a core or a GPU multiplies in a second,
# very roughly. They decide no more than where the work is done.
USES = 100
SPEED = {"cpu": 4e10, "gpu": 2e13}


@dataclass(frozen=True)
class Predictions:
    """What was written.

    Attributes:
        rows: How many images.
        errors: How many of them have no label.
        labels: How many have each label; a class that none has is left out.
        images: SHA-256 (hex) over the paths and the contents of the images.
        reused: How many units an earlier run, which was killed, had finished.
    """

    rows: int
    errors: int
    labels: Mapping[str, int]
    images: str
    reused: int


def predict(
    registered: Registered, source: Source, output: Path, store: Store
) -> "tuple[Predictions, pa.Table]":
    """Classifies all images of an input.

    Args:
        registered: The version that classifies.
        source: The input.
        output: The Parquet file that is written, at the end and as a whole.
        store: Its scratch keeps the finished units of a run that is killed.

    Returns:
        What was written, and a sample of the images as `tasks.data.image_facts.schema` has it.

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
        return _join(files, output, metadata, reused), _sample(files)


def sample(registered: Registered, source: Source, store: Store) -> "pa.Table":
    """Classifies a sample of an input; the arguments and the errors of `predict`.

    Returns:
        The sample, as `tasks.data.image_facts.schema` has it.
    """
    with _classified(registered, source, store, only_sample=True) as (files, _):
        return _sample(files)


@contextmanager
def _classified(
    registered: Registered, source: Source, store: Store, only_sample: bool = False
) -> Iterator[tuple[list[Path], int]]:
    """The files of the units, and how many were there; they are removed after the block."""
    folder, name = registered.package, registered.version.title
    if others := other_versions(folder):
        libraries = ", ".join(others)
        logger.warning("%s was registered with other libraries: %s.", name, libraries)
    units = source.units()
    key = _key(registered, source, units, only_sample)
    with store.lock(NAME, key):
        scratch = store.scratch(NAME, key)
        if ray_cluster.is_remote():  # its machines see the store
            folder = _copied(folder, scratch / "package")
        rows = sum(unit.rows for unit in units)
        job = Job(name, folder, source, rows, only_sample, scratch)
        with console.unit_progress(NAME, len(units)) as show:
            reused = map_units(
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
    """What finished units belong to: they are of no use after a file of the input has changed."""
    modules = (__name__, "tasks.compute.answer", READERS[source.format])
    made_by = {
        "package": registered.digest,
        "code": code_digests(modules),
        "libraries": {name: installed(name) for name in LIBRARIES},
        "only_sample": only_sample,
        "state": source.state,
        "units": [asdict(unit) for unit in units],
    }
    return digest_of(made_by)


def _copied(folder: Path, copy: Path) -> Path:
    """Copies a package to where all machines of a cluster see it."""
    if not copy.exists():
        with atomic.replacing(copy) as aside:
            shutil.copytree(folder, aside)
    return copy


def _seconds(folder: Path, units: Sequence[Unit]) -> float:
    """How long a core, or a GPU, takes for all images, roughly."""
    weights = (folder / package.MODEL / package.FILES[0]).stat().st_size / 4
    one = weights * USES / SPEED["gpu" if gpu_capabilities() else "cpu"]
    return sum(unit.seconds + unit.rows * one for unit in units)


def _join(
    files: Sequence[Path], output: Path, metadata: Mapping[str, str], reused: int
) -> Predictions:
    """Writes the rows of all units into one file, a unit at a time, and counts them."""
    import pyarrow.parquet as pq

    rows, labels, images = 0, Counter[str](), hashlib.sha256()
    with (
        atomic.replacing(output) as aside,
        pq.ParquetWriter(aside, schema().with_metadata(metadata)) as writer,
    ):
        for file in files:
            table = pq.read_table(file, columns=schema().names)
            writer.write_table(table.replace_schema_metadata(metadata))
            rows += len(table)
            labels.update(table["label"].drop_null().to_pylist())
            images.update(digest_of_images(table))
        digest = images.hexdigest()
        writer.add_key_value_metadata({"retrain.images": digest})
    errors = rows - labels.total()
    return Predictions(rows, errors, dict(sorted(labels.items())), digest, reused)


def _sample(files: Sequence[Path]) -> "pa.Table":
    """The rows of the sample that have a label and facts."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = image_facts.schema()
    is_complete = pc.field("label").is_valid() & pc.field("side").is_valid()
    tables = [pq.read_table(file, columns=columns.names, filters=is_complete) for file in files]
    return pa.concat_tables([columns.empty_table(), *tables])
