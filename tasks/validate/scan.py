"""Decodes each new image once, in a plan of Ray Data, and writes what it finds to disk.

Each unit of the data is inspected, and a Parquet file about it is written; nothing comes back to
the driver. The files remain after a kill, and the next run inspects only the units without one.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from models.image import inspect
from retrain import atomic
from retrain.runs import console
from tasks.compute.ray_data import map_units
from tasks.data import image_table
from tasks.data.fingerprint import fingerprints, shrink
from tasks.data.pixels import digest
from tasks.data.raw_dataset import RawDataset, RawImage, Unit
from tasks.validate.known import FILE, MORE, KnownImages
from tasks.validate.label_names import LabelNames

_DATE_TIME, _EXIF, _DATE_TIME_ORIGINAL = 306, 0x8769, 36867  # tags of EXIF
_TIME = re.compile(r"[1-9]\d{3}:\d\d:\d\d \d\d:\d\d:\d\d")  # a camera without a clock writes zeros
BATCH = 1024  # rows that are Python's objects at a time; in Arrow they are a tenth as large


@dataclass(frozen=True)
class ScanTask:
    """The work on one unit: inspect its images.

    Attributes:
        unit: The images it reads.
        path: The file about its images: the columns of `tasks.data.image_table` but `unit`, the
            split from the data's names; `error`, why an image does not decode; and if it does,
            `fingerprint` and `thumbnail` (`tasks/data/fingerprint.py`); `taken`, the time in its
            EXIF data, if that is asked for. Of a known image, they are not found again.
    """

    unit: Unit
    path: Path


def scan_units(
    source: RawDataset,
    names: LabelNames,
    folder: Path,
    with_times: bool = False,
    earlier: Path | None = None,
) -> list[Path]:
    """Inspects the units that have no file in a folder yet, and says how many images were known.

    Args:
        source: The data.
        names: The names of its classes.
        folder: The folder of the files.
        with_times: Whether to look for the times in the images' EXIF data.
        earlier: An earlier output of `validate`, whose findings are taken.

    Returns:
        The files about all units, in order of the units.

    Raises:
        ValueError: The data cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [
        ScanTask(unit, folder / f"{number:06d}.parquet")
        for number, unit in enumerate(source.units())
    ]
    files = [task.path for task in tasks]
    missing = [task for task in tasks if not task.path.exists()]
    images = sum(task.unit.rows for task in missing)
    known = KnownImages(earlier / FILE) if earlier else None
    if missing:
        with console.counted("validate", images) as show:
            counts = map_units(
                partial(_inspect, source, names, with_times, known),
                missing,
                seconds=sum(task.unit.seconds for task in missing),
                done=lambda task: show(task.unit.rows),
            )
        if known:
            console.say(f"validate: {sum(counts):,} of {images:,} images were known")
    return files


def schema() -> pa.Schema:
    """The columns of a unit's file."""
    return pa.schema(
        [
            *(field for field in image_table.schema() if field.name != "unit"),
            pa.field("error", pa.string()),
            *MORE,
        ]
    )


def _inspect(
    source: RawDataset,
    names: LabelNames,
    with_times: bool,
    known: KnownImages | None,
    task: ScanTask,
) -> int:
    """Writes the file about a unit; returns how many of its images were known."""
    count = 0
    with atomic.replacing(task.path) as aside, pq.ParquetWriter(aside, schema()) as writer:
        images = source.read(task.unit)
        while batch := list(islice(images, BATCH)):
            digests = [hashlib.sha256(image.data).hexdigest() for image in batch]
            found = known.find(digests) if known else {}
            count += sum(digest in found for digest in digests)
            rows = _rows(zip(batch, digests, strict=True), names, with_times, found)
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema()))
    return count


def _rows(
    images: Iterable[tuple[RawImage, str]],
    names: LabelNames,
    with_times: bool,
    found: Mapping[str, Mapping[str, object]],
) -> list[dict[str, object]]:
    rows, decoded, shrunk = [], [], []
    for image, sha256 in images:
        row: dict[str, object] = {
            "split": image.split,
            "path": image.path,
            "label": names.of(image),
            "file": image.file,
            "row": image.row,
            "bytes": len(image.data),
            "sha256": sha256,
        }
        rows.append(row)
        if sha256 in found:
            row |= found[sha256]
            continue
        try:
            properties, pixels = inspect(image.data)
        except ValueError as error:
            row["error"] = str(error)
            continue
        row |= asdict(properties)
        row["pixels"] = digest(pixels)
        if with_times:
            row["taken"] = _taken(image.data)
        decoded.append(row)
        shrunk.append(shrink(pixels))
    for row, fingerprint, thumbnail in zip(decoded, *fingerprints(shrunk), strict=True):
        row["fingerprint"], row["thumbnail"] = int(fingerprint), thumbnail.tobytes()
    return rows


def _taken(data: bytes) -> str | None:
    """When an image that decodes was taken, from its EXIF data: `2026:11:23 14:55:02`."""
    with Image.open(io.BytesIO(data)) as opened:
        exif = opened.getexif()
    tags = (exif.get_ifd(_EXIF).get(_DATE_TIME_ORIGINAL), exif.get(_DATE_TIME))
    times = (_TIME.match(str(tag)) for tag in tags)
    return next((time[0] for time in times if time), None)
