"""How much memory each step takes, by the number of images.

    python -m benchmarks.memory --images 10000 100000 1000000

Each step runs its real function in a process of its own, with Ray started before, on images of
32 x 32 pixels: `vit` with a very small network, one epoch, and whatever `--set` says. What a step
can be a plan on Ray it is one, even where the images are so few that it would not. Every 50 ms two
figures are taken, and the highest of each is shown, in MB (10^6 bytes), with its ratio to that
of the fewest images:

- driver: the process that called the step
- worker: the largest of its Ray workers (those that run tasks and actors)

A process's memory is its resident set without what it shares (`rss - shared` of psutil, RssAnon of
Linux): all that it allocated itself. The resident set itself would count mapped files, which the
kernel takes back when it needs the room, and Ray's object store once for each process that looked
at it; and the unique set size counts a mapped file if one process alone maps it.

The images are generated, as Parquet in three splits with row groups of 1,000: JPEG files of smooth
patterns, no two of which are the same.

Result of 2026-11-21, two cores, 24 GiB; driver and worker, MB (the workers of the first two steps;
the others run in one process here):

    images           10,000      100,000    1,000,000
    validate      249   101    252   104    257   109
    preprocess    128    71    130    75    138    83
    train         516          523          530
    evaluate      540          543          535
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import psutil

from benchmarks.table import Row, report
from retrain.params import load_workload, parse_override
from retrain.project import Project, find_project
from retrain.step import Workspace
from retrain.store import Artifact
from tasks.data.champion import Start

STEPS = ("validate", "preprocess", "train", "evaluate")
SPREAD = ("validate", "preprocess")  # over Ray's workers; the others run in this process here
OVERRIDES: dict[str, Any] = {
    "images.size": 32,
    "images.channels": 3,
    "model.patch_size": 16,
    "model.hidden_size": 16,
    "model.layers": 1,
    "model.heads": 1,
    "train.epochs": 1,
    "train.batch_size": 256,
    "scale.memory_gb": 0.02,  # less than any number of images takes
}
SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}
CLASSES = 10
ROW_GROUP = 1000
INTERVAL = 0.05  # seconds


@dataclass(frozen=True)
class Peak:
    """The highest figures of one step, in MB, and how long it took."""

    driver: float
    worker: float
    seconds: float


def main() -> None:
    """Generates each number of images, runs the steps on them, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--run", nargs=2, metavar=("STEP", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        step, folder = options.run
        run_step(step, Path(folder), options.set)
        return
    peaks: dict[tuple[str, int], Peak] = {}
    for count in options.images:
        with tempfile.TemporaryDirectory() as name:
            generate(Path(name) / "data", count)
            for step in STEPS[: 1 + max(map(STEPS.index, options.steps))]:
                peaks[step, count] = measure(step, Path(name), options.set)
                print_peak(step, count, peaks[step, count], peaks[step, options.images[0]])
    fewest, most = options.images[0], options.images[-1]
    for step in options.steps:
        for part in ("driver", "worker") if step in SPREAD else ("driver",):
            low, high = (getattr(peaks[step, count], part) for count in (fewest, most))
            what, against = f"{step}, {part}, {most:,} images", f"{fewest:,}"
            report(Row("memory", what, high, against, low, "MB", "≤ 1.1"))


def generate(folder: Path, count: int) -> None:
    """Writes as many images, a row group at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema({"image": image, "label": pa.string()})
    number = 0
    for split, share in SHARES.items():
        stop = number + round(count * share)
        with pq.ParquetWriter(folder / f"{split}.parquet", schema) as writer:
            while number < stop:
                group = range(number, min(number + ROW_GROUP, stop))
                rows = [
                    {
                        "image": {"bytes": jpeg(n), "path": f"{n}.jpg"},
                        "label": f"class {n % CLASSES}",
                    }
                    for n in group
                ]
                writer.write_table(pa.Table.from_pylist(rows, schema))
                number = group.stop


def jpeg(number: int) -> bytes:
    """A smooth image of 32 x 32 pixels."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(number)
    y, x = np.mgrid[:32, :32] / 32
    waves = [np.sin(6 * (a * x + b * y) + c) for a, b, c in random.uniform(-3, 3, (3, 3))]
    pixels = (127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def measure(step: str, folder: Path, overrides: Sequence[str]) -> Peak:
    """Runs a step in a process of its own and watches it."""
    settings = [argument for each in overrides for argument in ("--set", each)]
    command = [sys.executable, "-m", "benchmarks.memory", "--run", step, str(folder), *settings]
    log = folder / f"{step}.log"
    began = time.monotonic()
    driver = worker = 0.0
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            driver = max(driver, own_memory(psutil.Process(process.pid)))
            worker = max([worker, *map(own_memory, ray_workers(process.pid))])
            time.sleep(INTERVAL)
    if process.returncode:
        sys.exit(f"{step} failed:\n{log.read_text()[-4000:]}")
    return Peak(driver / 1e6, worker / 1e6, time.monotonic() - began)


def ray_workers(driver: int) -> list[psutil.Process]:
    """The Ray processes below a driver that run tasks and actors, or wait for some."""
    workers = []
    try:
        for process in psutil.Process(driver).children(recursive=True):
            if process.name().startswith("ray::"):
                workers.append(process)
    except psutil.NoSuchProcess:  # it has just ended
        pass
    return workers


def own_memory(process: psutil.Process) -> int:
    """Bytes that it allocated; 0 once it has ended."""
    try:
        memory = process.memory_info()
    except psutil.NoSuchProcess:
        return 0
    return int(memory.rss - memory.shared)


def print_peak(step: str, count: int, peak: Peak, fewest: Peak) -> None:
    """A row of the table."""
    print(
        f"{step:<10} {count:>9,} images  "
        f"driver {peak.driver:6.0f} MB ({peak.driver / fewest.driver:.2f})  "
        f"worker {peak.worker:6.0f} MB ({peak.worker / fewest.worker:.2f})  "
        f"{peak.seconds:6.1f} s",
        flush=True,
    )


def run_step(name: str, folder: Path, overrides: Sequence[str]) -> None:
    """Runs a step on what the earlier ones left in a folder."""
    from retrain.servers import ray_cluster
    from tasks.compute import ray_data
    from tasks.evaluate.step import evaluate
    from tasks.preprocess.step import preprocess
    from tasks.train.step import train
    from tasks.validate.step import validate

    # A plan however little work there is.
    ray_data.RAY_START = ray_data.RAY_WORKERS = ray_data.PLAN = 0.0
    step = {each.name: each for each in (validate, preprocess, train, evaluate)}[name]
    workload = load_workload(
        find_project().params, "vit", OVERRIDES | dict(map(parse_override, overrides))
    )
    ray_cluster.connect()
    workspace = Workspace(
        folder / name, folder / f"{name}-scratch", "benchmark", workload.name, Project(folder)
    )
    for path in (workspace.folder, workspace.scratch):
        path.mkdir()
    facts = step.run(
        workload, [output(each, folder) for each in step.inputs_for(workload)], workspace
    )
    (folder / f"{name}.json").write_text(json.dumps(facts))
    shutil.rmtree(workspace.scratch)


def output(step: str, folder: Path) -> Artifact | Start:
    """What an earlier step left; the images themselves stand for `pull`'s."""
    if step == "start":
        return Start(None)
    if step == "pull":
        return Artifact("pull", "benchmark", "benchmark", folder, {"format": "parquet"})
    facts = json.loads((folder / f"{step}.json").read_text())
    return Artifact(step, "benchmark", "benchmark", folder / step, facts)


if __name__ == "__main__":
    main()
