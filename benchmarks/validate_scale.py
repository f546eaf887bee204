"""What `validate` costs after its scan, and the order of an epoch, for as many images as are given.

    python -m benchmarks.validate_scale --rows 10000000 [--group near_duplicates] [--time]

The scan is made up: units of 16,384 images in 1,000 classes, without splits, random digests,
fingerprints and thumbnails; of each 1,000 images one does not decode, one is too small, and two
are copies of another one's pixels. Each part of the step is shown with its seconds, and with the
highest memory of the process in it that no file on disk backs.

Of 2026-11-25, 10,000,000 rows, two cores that others used too, seconds of one core: `_fill` 68,
`_divide` 229 (of which the splits 125, near duplicates 37 and 849 MB), Great Expectations 41,
`_write` 80; the order of an epoch 0.6 and 0.2 with windows, by classes 2.9 and 0.7.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from retrain.project import Project
from retrain.step import Workspace
from retrain.workload import Checks, Data
from tasks.data import image_table
from tasks.data.fingerprint import THUMBNAIL
from tasks.data.raw_dataset import MAX_UNIT_ROWS, open_format
from tasks.train.sampler import BatchSampler, Windows, class_weights
from tasks.validate import groups_and_times, scan, step as validate
from tasks.validate.image_database import ImageDatabase
from tasks.validate.suite import SuiteRunner

CLASSES = 1000
INTERVAL = 0.02  # seconds
PARTS = {
    ImageDatabase: (
        *("find", "tie", "assign_splits", "learn_labels", "find_near_duplicates"),
        *("set_aside", "count_accepted", "brightness"),
    ),
    SuiteRunner: ("check", "write_docs"),
    image_table: ("images_per_class", "digest_of_split", "class_names", "row_groups"),
    validate: ("_fill", "_divide", "_judge", "_write", "_list_near_duplicates"),
    BatchSampler: ("epoch",),
}


def main() -> None:
    """Makes the scan, and shows what each part takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--group", choices=("near_duplicates", "name"))
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    for place, names in PARTS.items():
        for name in names:
            setattr(place, name, shown(getattr(place, name)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with measured("the scan, made up"):
            files = made_up(folder / "scan", options.rows)
        group = r"/(\d+)\d\." if options.group == "name" else options.group
        data = Data(path="data", group=group, time=groups_and_times.EXIF if options.time else None)
        after_the_scan(folder, files, data)
        image_table.row_groups(folder)
        image_table.class_names(folder)
    epochs(options.rows)


def shown(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that also shows what each call takes."""

    @wraps(function)
    def measuring(*given: Any, **named: Any) -> Any:
        what = next((each for each in given if isinstance(each, str)), "").split("\n")[0]
        with measured(f"{function.__qualname__} {what}"):
            return function(*given, **named)

    return measuring


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Shows the seconds of a block, and the highest memory in it."""
    process, peak, ended = psutil.Process(), 0, Event()

    def watch() -> None:
        nonlocal peak
        while True:
            memory = process.memory_info()
            peak = max(peak, memory.rss - memory.shared)
            if ended.wait(INTERVAL):
                return

    watching = Thread(target=watch)
    watching.start()
    began, computed = time.monotonic(), time.process_time()
    try:
        yield
    finally:
        seconds, cpu = time.monotonic() - began, time.process_time() - computed
        ended.set()
        watching.join()
        print(
            f"{what:<50} {seconds:7.1f} s {cpu:7.1f} s of a core {peak / 1e6:6.0f} MB", flush=True
        )


def made_up(folder: Path, rows: int) -> list[Path]:
    """Writes the files of a scan."""
    folder.mkdir()
    random = np.random.default_rng(0)
    files = []
    for unit, first in enumerate(range(0, rows, MAX_UNIT_ROWS)):
        files.append(folder / f"{unit:06d}.parquet")
        numbers = np.arange(first, min(first + MAX_UNIT_ROWS, rows))
        pq.write_table(_unit(unit, numbers, rows, random), files[-1])
    return files


def _unit(unit: int, numbers: Any, rows: int, random: np.random.Generator) -> pa.Table:
    count = len(numbers)
    broken, small, copy = (numbers % 1000 == fault for fault in (7, 8, 9))
    labels = numbers * CLASSES // rows
    paths = pa.array([f"{n:04d}/{k:08d}.jpg" for n, k in zip(labels, numbers, strict=True)])
    pixels = np.array([random.bytes(32).hex() for _ in range(count)], object)
    pixels[copy] = pixels[np.flatnonzero(copy) - 5]
    prints = random.integers(1, 2**63, count)
    prints[1::100] = prints[0:-1:100]
    thumbnails = random.integers(0, 256, (count, THUMBNAIL), np.uint8)
    thumbnails[1::100] = thumbnails[0:-1:100]
    side = np.where(small, 4, 500).astype(np.int32)
    days = random.integers(1, 29, count)
    columns = {
        "unit": np.full(count, unit, np.int32),
        "split": pa.nulls(count, pa.string()),
        "path": paths,
        "label": pa.array([f"{label:04d}" for label in labels]),
        "file": paths,
        "row": np.zeros(count, np.int64),
        "width": pa.array(side, mask=broken),
        "height": pa.array(side, mask=broken),
        "mode": pa.array(["RGB"] * count, mask=broken),
        "bytes": random.integers(1000, 300_000, count),
        "sha256": pa.array([random.bytes(32).hex() for _ in range(count)]),
        "pixels": pa.array(pixels, pa.string(), mask=broken),
        "error": pa.array(["not an image"] * count, mask=~broken),
        "fingerprint": pa.array(prints, mask=broken),
        "thumbnail": pa.array([*map(bytes, thumbnails)], pa.binary(THUMBNAIL), mask=broken),
        "taken": pa.array([f"2026:11:{day:02d} 12:00:00" for day in days]),
    }
    return pa.Table.from_arrays([*map(pa.array, columns.values())], schema=scan.schema())


def after_the_scan(folder: Path, files: list[Path], data: Data) -> None:
    """Does what `validate` does after its scan; its files are then in the folder."""
    checks = Checks(max_bad_fraction=0.1)
    space = Workspace(folder, folder / "scratch", "benchmark", "vit", Project(folder))
    space.scratch.mkdir()
    source = open_format("folders", folder)
    with closing(ImageDatabase(space.scratch / "images.sqlite")) as database:
        groups = groups_and_times.read_groups(data.group, source)
        times = groups_and_times.read_times(data.time, source)
        validate._fill(database, files, groups, times, space)
        validate._divide(database, data, checks)
        print(validate._judge(database, data, checks, space)["rows"])


def epochs(rows: int) -> None:
    """Makes the order of an epoch, for one worker of eight."""
    labels = np.random.default_rng(0).integers(0, CLASSES, rows)
    chances = class_weights(labels, CLASSES)[labels]
    for windows in (None, Windows(batches=100, block=32)):
        for each in (None, chances):
            sampler = BatchSampler(rows, 1024, 0, 3, 8, windows=windows, chances=each)
            print("windows" if windows else "all", "by classes" if each is not None else "")
            sampler.epoch(0)


if __name__ == "__main__":
    main()
