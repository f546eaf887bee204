"""Checks the data before a model is trained on it, and sets single bad images aside.

Every new image is decoded once. What is found, and what the index says, become a data frame with a
row for each image, which Great Expectations checks.

What is found follows from the content of an image, whatever its name and class are. So it is kept
by the SHA-256 of the encoded image, and the scan of the next version of the data takes it and
decodes the new images alone. Each unit of the data gets a file; the files remain after a kill, and
the next run inspects only the units without one.
"""

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from models.image import inspect
from retrain import file_io
from retrain.registry import lineage
from retrain.runs import console
from retrain.step import Facts, Workspace, step
from retrain.store import Artifact
from retrain.workload import NEAR_DUPLICATES, Checks, Data, Gate
from tasks.compute.ray_data import each_counted
from tasks.data import image_table
from tasks.data.image_facts import digest, luminance
from tasks.data.listing import SPLITS
from tasks.data.perceptual_hash import THUMBNAIL, fingerprints, shrink
from tasks.data.raw_images import (
    COLUMNS,
    INDEX,
    ImageFiles,
    Place,
    cut,
    open_images,
    places_of,
    seconds_for,
)

BATCH = 1024  # rows that are Python's objects at a time; in Arrow they are a tenth as large
FINDINGS = pa.schema(
    {
        "sha256": pa.string(),  # hex, of the encoded image
        **image_table.PROPERTIES,
        "pixels": pa.string(),
        "fingerprint": pa.int64(),
        "thumbnail": pa.binary(THUMBNAIL),
    }
)
# Of the file about a unit; `error` says why an image does not decode.
SCANNED = FINDINGS.append(pa.field("bytes", pa.int64())).append(pa.field("error", pa.string()))


@step(
    inputs=("pull", "champion_ties"),
    reads=("data.label_names", "data.split", "data.group", "data.time", "checks", "gate.slices"),
    libraries=("great-expectations", "pillow", "pyarrow"),
)
def validate(
    data: Data,
    checks: Checks,
    rules: Gate,
    pulled: Artifact,
    known: bytes | None,
    workspace: Workspace,
) -> Facts:
    """Checks every image, every class and every split.

    Writes `images.parquet`, the accepted images, as `tasks/data/image_table.py` defines it;
    `quarantined.parquet`, the bad ones, with the reason; `findings.arrow`, what was found of the
    images, for the next version of the data; and below `report/`, what Great Expectations found,
    `near_duplicates.csv`, the first accepted images that look like one of a later split,
    `corrected.csv`, the labels that are not those of the data because people have corrected them,
    and `ties.npy`, which images look the same, if these are kept together; `known` are those of the
    champion.

    Returns:
        `rows` of each split; how many images were `quarantined`; `classes`, the number of accepted
        images of each class; how many of these are `near_duplicates`; how many labels were
        `corrected`; `cut`, the splits that the data lacks, which were cut out of those that it has;
        `test_rows`, SHA-256 (hex) over the test split, as `image_table.digest_of_split` gives it;
        and of the test split `test_groups`, how many groups of images that belong together it has,
        and `test_units`, how many of each class.

    Raises:
        RejectedDataError: More than `checks.max_bad_fraction` of the images are bad, or the others
            are too few. A report of all faults goes to the project's state folder.
        ValueError: The data cannot be read, or lacks a column of `gate.slices`.
    """
    from tasks.validate import (  # with pandas and Great Expectations
        annotations,
        expectations,
        splits,
    )

    files, listed = open_images(pulled), pq.read_table(pulled.folder / INDEX)
    ours = {*COLUMNS.names, *image_table.SCHEMA.names}
    own = listed.drop_columns([*ours.intersection(listed.column_names)])
    annotations.check_slices(rules.slices, (*image_table.SCHEMA.names, *own.column_names))
    try:
        inspected = workspace.scratch / "inspected"
        found = scan(files, listed.select(["file", "row", "bytes"]), inspected, workspace.earlier())
        keep(found, workspace.folder)
        with console.progress("dividing the images"):
            images = splits.join(listed, found)
            corrected = splits.correct(images, data, files.root)
            ties = np.load(BytesIO(known)) if known else splits.NO_TIES
            images = splits.divide(images, own, found, data, checks, ties)
            if data.group == NEAR_DUPLICATES:
                np.save(workspace.report / lineage.TIES, splits.ties_of(images))
        with console.progress("checking the rules"):
            facts = expectations.check(images, own, checks, workspace)
    except ValueError:  # a verdict: the same data is not checked again
        shutil.rmtree(workspace.scratch, ignore_errors=True)
        raise
    corrected.to_csv(workspace.report / image_table.CORRECTED, index=False)
    cut = [split for split in SPLITS if split not in listed["split"].unique().to_pylist()]
    return facts | {"corrected": len(corrected), "cut": [] if len(cut) == len(SPLITS) else cut}


def scan(files: ImageFiles, images: pa.Table, folder: Path, earlier: Path | None) -> pa.Table:
    """Inspects images, and says how many of them were known.

    Args:
        files: Reads the images.
        images: The index of the data.
        folder: The folder for the files about the units.
        earlier: An earlier output of `validate`, whose findings are taken.

    Returns:
        A row for each image, in order: `SCANNED`.

    Raises:
        ValueError: The data cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places, sizes = places_of(images), images["bytes"].to_pylist()
    units = cut(files, places, sizes)
    paths = [folder / f"{number:06d}.parquet" for number in range(len(units))]
    missing = {path: unit for path, unit in zip(paths, units, strict=True) if not path.exists()}
    work = [(path, places[unit]) for path, unit in missing.items()]
    seconds = sum(seconds_for(sizes[unit]) for unit in missing.values())
    known = earlier / image_table.FINDINGS if earlier else None
    images_of = [len(unit) for _, unit in work]
    inspect_unit = partial(_inspect, files, known)
    counts = each_counted("validate", lambda _: inspect_unit, work, images_of, seconds=seconds)
    if known:
        console.say(f"validate: {sum(counts):,} of {sum(images_of):,} images were known")
    return pa.concat_tables(pq.read_table(path, use_threads=False) for path in paths)


def keep(found: pa.Table, folder: Path) -> None:
    """Writes what was found of the images that decode, in order of their digests.

    Whether an image decodes may depend on what else is installed, so the others are tried again.
    """
    decoded = found.filter(pc.is_null(found["error"])).select(FINDINGS.names)
    table = decoded.sort_by("sha256").combine_chunks()
    with (
        pa.OSFile(f"{folder}/{image_table.FINDINGS}", "wb") as file,
        pa.ipc.new_file(file, FINDINGS) as writer,
    ):
        writer.write_table(table)


def _inspect(files: ImageFiles, known: Path | None, unit: tuple[Path, Sequence[Place]]) -> int:
    """Writes the file about a unit; returns how many of its images were known."""
    count, (path, places) = 0, unit
    with file_io.replacing(path) as aside, pq.ParquetWriter(aside, SCANNED) as writer:
        images = files.read(places)
        while batch := list(islice(images, BATCH)):
            digests = [hashlib.sha256(data).hexdigest() for data in batch]
            found = _find(known, digests) if known else {}
            count += sum(sha256 in found for sha256 in digests)
            rows = _rows(zip(batch, digests, strict=True), found)
            writer.write_batch(pa.RecordBatch.from_pylist(rows, SCANNED))
    return count


def _rows(
    images: Iterable[tuple[bytes, str]], found: Mapping[str, Mapping[str, object]]
) -> list[dict[str, object]]:
    rows, decoded, shrunk = [], [], []
    for data, sha256 in images:
        row: dict[str, object] = {"sha256": sha256, "bytes": len(data)}
        rows.append(row)
        if sha256 in found:
            row |= found[sha256]
            continue
        try:
            properties, pixels = inspect(data)
        except ValueError as error:
            row["error"] = str(error)
            continue
        row |= asdict(properties) | luminance(pixels, properties.format)
        row["pixels"] = digest(pixels)
        decoded.append(row)
        shrunk.append(shrink(pixels))
    for row, fingerprint, thumbnail in zip(decoded, *fingerprints(shrunk), strict=True):
        row["fingerprint"], row["thumbnail"] = int(fingerprint), thumbnail.tobytes()
    return rows


def _find(known: Path, digests: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What an earlier scan has found of images, by their digests."""
    table, digests_there = _open(known)
    wanted = np.array(digests, digests_there.dtype)
    rows = np.searchsorted(digests_there, wanted)
    is_known = digests_there[np.minimum(rows, len(digests_there) - 1)] == wanted
    found = table.take(np.unique(rows[is_known])).to_pylist()
    return {row["sha256"]: row for row in found}


@lru_cache(maxsize=1)
def _open(file: Path) -> tuple[pa.RecordBatch, NDArray[np.bytes_]]:
    """The table, and the digests in it; neither is read into memory."""
    [table] = pa.ipc.open_file(pa.memory_map(str(file))).read_all().to_batches()
    return table, np.frombuffer(table["sha256"].buffers()[2], "S64")


def say_near_duplicates(document: Mapping[str, Any]) -> None:
    """Shows how many images look like one that is held out from them, if there are any."""
    if count := document["data"]["near_duplicates"]:
        console.say(
            f"{count:,} images look like one of a split held out from theirs: "
            f"{image_table.NEAR_DUPLICATES} of the step validate lists them."
        )
