"""Decodes every image once, by a plan of Ray Data, and keeps what is learnt on disk.

It inspects the units of the data and writes a Parquet file about each; nothing comes back to the
driver. The files outlive a kill, and a run that goes on inspects only the units that
have none.
"""

import hashlib
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from models.image import inspect
from retrain.runs import console
from tasks.compute.ray_data import map_units
from tasks.data import image_table
from tasks.data.raw_dataset import RawDataset, RawImage, Unit

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 1024  # rows that are Python's objects at a time; in Arrow they are a tenth as large


@dataclass(frozen=True)
class ScanTask:
    """What is done with one unit.

    Attributes:
        number: The unit's place in `RawDataset.units()`.
        unit: What it reads.
        path: The file about its images: the columns of `tasks.data.image_table`, the split as the
            data's names tell it, and `error`, why an image does not decode.
    """

    number: int
    unit: Unit
    path: Path


def scan_units(source: RawDataset, folder: Path) -> list[Path]:
    """Inspects the units that have no file in a folder yet.

    Returns:
        The files about all units, in order of the units.

    Raises:
        ValueError: The data cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        ScanTask(number, unit, folder / f"{number:06d}.parquet")
        for number, unit in enumerate(source.units())
    ]
    missing = [job for job in jobs if not job.path.exists()]
    if missing:
        with console.unit_progress("validate", len(missing)) as show:
            map_units(
                partial(_inspect, source),
                missing,
                seconds=sum(job.unit.seconds for job in missing),
                done=lambda job: show(job.unit.rows),
            )
    return [job.path for job in jobs]


def schema() -> "pa.Schema":
    """The columns of a unit's file."""
    import pyarrow as pa

    return image_table.schema().append(pa.field("error", pa.string()))


def _inspect(source: RawDataset, job: ScanTask) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    partial_file = job.path.with_suffix(".partial")
    with pq.ParquetWriter(partial_file, schema()) as writer:
        rows: list[dict[str, object]] = []
        for image in source.read(job.unit):
            rows.append(_row(job.number, image))
            if len(rows) == BATCH:
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema()))
                rows.clear()
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema()))
    partial_file.replace(job.path)


def _row(unit: int, image: RawImage) -> dict[str, object]:
    row: dict[str, object] = {
        "unit": unit,
        "split": image.split,
        "path": image.path,
        "label": image.label,
        "file": image.file,
        "row": image.row,
        "bytes": len(image.data),
        "sha256": hashlib.sha256(image.data).hexdigest(),
    }
    try:
        found = inspect(image.data)
    except ValueError as error:
        return row | {"error": str(error)}
    return row | asdict(found)
