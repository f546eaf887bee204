"""What a week costs whose data has grown a little, against the same week from nothing.

    python -m benchmarks.weeks --images 50000 --weeks 12

A copy of the project gets photos in class folders under DVC, which grow by 2 % a week. Each week
`pull`, `validate` and `preprocess` run in a process of their own, as a run of `train` calls them,
and the run's document is written, so that the clean-up (`retrain gc`) keeps what it would keep; for
that, everything in the store is made a week older. The last week runs once more with an empty
store. What is shown:

- the seconds of each step, and their sum as a part of that from nothing
- the bytes of the store after the clean-up (a file with several names counts once), against those
  of the store that has the last week alone; and what of them is not in DVC's cache as well, whose
  objects the images in the store are links to, against the last prepared data
- whether the digests of the outputs are the same in both stores

The photos are smooth patterns with noise, JPEG and every twentieth PNG, no two alike. They have
256 x 192 pixels, or as many as `--pixels` says: a photo of ImageNet has 469 x 387 on average. They
are named by number, as a camera does, so that those of a week follow each other; or at random
(`--names random`), so that they lie among the others.
"""

import argparse
import hashlib
import json
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import time
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.flow import call, copy_project
from benchmarks.table import Row, report
from retrain import gc
from retrain.atomic import write_json
from retrain.project import Project, find_project
from retrain.store import RunContext

STEPS = ("pull", "validate", "preprocess")
WORKLOAD = "weeks"
CLASSES = 10
GROWTH = 1.02
PARAMS = """
workloads:
  weeks:
    data: {path: data/photos}
    images: {size: 64, channels: 3}
    model: {family: vit, patch_size: 16, hidden_size: 16, layers: 1, heads: 1}
    train: {epochs: 1, batch_size: 64, lr: 0.001}
"""
WEEK = timedelta(days=7)


def main() -> None:
    """Lets the data grow, runs the steps each week, and prints what they cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--weeks", type=int, default=3)
    parser.add_argument("--names", choices=["number", "random"], default="number")
    parser.add_argument("--pixels", default="256x192", help="width and height of a photo")
    parser.add_argument("--follow", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow is not None:
        follow(options.follow)
        return
    with tempfile.TemporaryDirectory() as name:
        clone = copy_project(Path(name))
        (clone / "params.yaml").write_text(PARAMS, encoding="utf-8")
        there, steps = 0, dict[str, Any]()
        for week in range(options.weeks + 1):
            numbers = range(there, round(options.images * GROWTH**week))
            add_photos(clone, numbers, options.names, options.pixels)
            there = numbers.stop
            steps = run(clone, week, clone / "store")
            collect(clone)
            show(f"week {week}, {there:,} images", steps, size_of(clone / "store"))
        anew = run(clone, options.weeks, clone / "nothing")
        show("the same from nothing", anew, size_of(clone / "nothing"))
        tell(steps, anew, clone)


def show(what: str, steps: dict[str, Any], size: int) -> None:
    """A line for a week."""
    seconds = ", ".join(f"{name} {steps[name]['seconds']:.1f} s" for name in STEPS)
    print(f"{what}: {seconds}; the store has {size / 1e6:,.1f} MB", flush=True)


def tell(week: dict[str, Any], anew: dict[str, Any], clone: Path) -> None:
    """The figures of the last week and what they are compared with."""
    for name in STEPS:
        ours, theirs = (each[name]["seconds"] for each in (week, anew))
        report(Row("weeks", name, ours, "from nothing", theirs, "s"))
    ours, theirs = (sum(each[name]["seconds"] for name in STEPS) for each in (week, anew))
    report(Row("weeks", "a week", ours, "from nothing", theirs, "s", "≤ 0.1"))
    store, last = size_of(clone / "store") / 1e6, size_of(clone / "nothing") / 1e6
    report(Row("weeks", "the store", store, "the last week alone", last, "MB", "≤ 1.5"))
    prepared = size_of(Path(anew["preprocess"]["path"])) / 1e6
    own = size_of(clone / "store", clone / ".dvc/cache") / 1e6
    name, other = "the store, but for links to DVC's cache", "the last prepared data"
    report(Row("weeks", name, own, other, prepared, "MB", "≤ 1.5"))
    for name in STEPS:
        same = week[name]["digest"] == anew[name]["digest"]
        print(f"{name}: the digest is {'the same' if same else 'ANOTHER ONE'}", flush=True)


def add_photos(clone: Path, numbers: range, names: str, pixels: str) -> None:
    """Adds the photos with some numbers, and puts the version under DVC."""
    for label in range(CLASSES):
        (clone / "data/photos" / f"class_{label}").mkdir(parents=True, exist_ok=True)
    width, height = map(int, pixels.split("x"))
    with ProcessPoolExecutor() as pool:
        write = partial(write_photo, clone / "data/photos", names, width, height)
        list(pool.map(write, numbers, chunksize=100))
    call(clone, ("-m", "dvc", "add", "--quiet", "data"))


def write_photo(folder: Path, names: str, width: int, height: int, number: int) -> None:
    """Writes the photo with a number: a smooth pattern with a little noise."""
    random = np.random.default_rng(number)
    small = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    grain = np.frombuffer(random.bytes(width * height), np.uint8).reshape(height, width, 1)
    photo = Image.fromarray((smooth + grain % 13 - np.int16(6)).clip(0, 255).astype(np.uint8))
    path = folder / f"class_{number % CLASSES}" / file_name(number, names)
    photo.save(path, quality=85, compress_level=1)


def file_name(number: int, names: str) -> str:
    """The name of a photo."""
    stem = f"IMG_{number:07}"
    if names == "random":
        stem = hashlib.sha256(stem.encode()).hexdigest()[:16]
    return f"{stem}.{'png' if number // CLASSES % 20 == 0 else 'jpg'}"


def run(clone: Path, week: int, store: Path) -> dict[str, Any]:
    """Runs the steps in a process of their own; what `follow` says of each, by its name."""
    os.environ["RETRAIN_STORE"] = str(store)
    said = call(clone, ("-m", "benchmarks.weeks", "--follow", str(week)))[1]
    outcomes = json.loads(said.splitlines()[-1])
    return {outcome["step"]: outcome for outcome in outcomes}


def follow(week: int) -> None:
    """Calls the steps in this process, and leaves the document of a run; prints the outcomes."""
    from flows.train import train
    from retrain.params import load_workload
    from retrain.runs.one_step import OneStep, StepEndedError

    project = find_project()
    workload = load_workload(project.params, WORKLOAD)
    for load in train.imports_from(STEPS[0], workload):  # a run does so while its server starts
        load()
    state = train.state(RunContext(f"week-{week}", project), workload)
    with state.store.runs.holding(state.context.run), suppress(StepEndedError):
        OneStep(state, last=STEPS[-1]).follow(train.fn, state.version)
    outcomes = [vars(outcome) for outcome in state.outcomes]
    folder = project.state / "runs" / "train" / WORKLOAD
    folder.mkdir(parents=True, exist_ok=True)
    when = datetime(2026, 1, 5, tzinfo=UTC) + week * WEEK
    document = {"run": f"week-{week}", "time": when.isoformat(), "steps": outcomes}
    write_json(folder / f"week-{week}.json", document)
    print(json.dumps(outcomes))


def collect(clone: Path) -> None:
    """Removes what a clean-up a week later would remove."""
    project = Project(clone)
    for path in (project.store, *project.store.rglob("*")):
        os.utime(path, times=(time() - WEEK.total_seconds(),) * 2)
    gc.collect(project)


def size_of(folder: Path, without: Path | None = None) -> int:
    """The bytes of all files in a folder; those with several names count once.

    Args:
        folder: The folder.
        without: A folder whose files do not count, under whatever name they are in the other.
    """
    kept = _sizes(folder).items() - (_sizes(without).items() if without else set())
    return sum(size for _, size in kept)


def _sizes(folder: Path) -> dict[int, int]:
    """The bytes of each file in a folder, by its inode."""
    stats = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return {stat.st_ino: stat.st_size for stat in stats}


if __name__ == "__main__":
    main()
