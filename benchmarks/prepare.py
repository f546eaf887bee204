"""How fast `preprocess` prepares images, against the pool that one would write by hand.

    python -m benchmarks.prepare --cifar cifar10/test.parquet --rounds 3

The data: the JPEGs of a Parquet file of CIFAR-10 (columns `image`, a struct of `bytes` and `path`,
and `label`) as class folders, made into 64 x 64; and `--photos` JPEGs of 1,500 x 1,000 (quality 85,
4:2:0, some 300 kB), which are those images with noise, made into 224 x 224.

- preprocess: images/s of the real step, from its call to its return. Ray runs and has its workers.
- pool: images/s of a pool of two processes that runs already. Each decodes and crops the images of
  a part with Pillow (no draft mode), scales them (bicubic) and writes them to a `.npy` file.

A kind counts with the median of its rounds; they take turns. Of small images, scaling by Pillow is
most of the work in both.
"""

import argparse
import io
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.table import Row, report
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.step import Workspace
from retrain.store import Artifact
from retrain.workload import Checks, Data, Gate, Images
from tasks.compute.ray_data import each
from tasks.data import index
from tasks.data.raw_images import INDEX
from tasks.data.shards import open_prepared
from tasks.preprocess.step import preprocess
from tasks.validate.step import validate

DATA = Data(path="data")
PART = 250  # files of a task of the pool


def main() -> None:
    """Runs the rounds and prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar", type=Path, default=Path("cifar10/test.parquet"))
    parser.add_argument("--photos", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not options.cifar.is_file():
        sys.exit(f"{options.cifar} is not there: give a Parquet file of CIFAR-10 with --cifar.")
    with (
        multiprocessing.get_context("spawn").Pool(2) as pool,
        tempfile.TemporaryDirectory() as name,
    ):
        root = Path(name)
        write_data(root, options.cifar, options.photos)
        ray_cluster.connect()
        list(each(lambda _: abs, range(8), seconds=1e6))  # starts the workers
        compare(root / "small", Images(size=64), pool, options.rounds, "≥ 0.9")
        compare(root / "photos", Images(size=224), pool, options.rounds, "≥ 2.0")
        ray_cluster.disconnect()


def write_data(root: Path, cifar: Path, photos: int) -> None:
    """Lays the two kinds of data out as `pull` does, below `<kind>/data`."""
    table = pq.read_table(cifar)
    rows = table["image"].combine_chunks()
    encoded = rows.field("bytes").to_pylist()
    labels = table["label"].to_pylist()
    for number, (label, image) in enumerate(zip(labels, encoded, strict=True)):
        path = root / f"small/data/{label}/{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    random = np.random.default_rng(0)
    for number in range(photos):
        path = root / f"photos/data/{number % 10}/{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.open(io.BytesIO(encoded[number % len(encoded)])).resize((1500, 1000))
        pixels = np.asarray(image) + random.normal(0, 8, (1000, 1500, 3))
        photo = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        photo.save(path, "JPEG", quality=85, subsampling="4:2:0")


def compare(root: Path, images: Images, pool: Pool, rounds: int, target: str) -> None:
    """Prepares the images of a folder in turns, and prints the figures."""
    found = index.build(root / "data", DATA)
    pq.write_table(found.images, root / INDEX)
    pulled = Artifact("pull", "", "", root, {"image_column": found.files.image_column})
    space = _workspace(root / f"validated-{images.size}")
    facts = validate(DATA, Checks(min_images_per_class=1), Gate(), pulled, space)
    count = sum(facts["rows"].values())
    validated = Artifact("validate", "", "", space.folder, facts)
    paths = sorted((root / "data").rglob("*.*"))
    parts = [paths[first : first + PART] for first in range(0, len(paths), PART)]

    kinds: dict[str, Callable[[Path], Any]] = {
        "preprocess": lambda folder: preprocess(images, pulled, validated, _workspace(folder)),
        "pool": lambda folder: pool.starmap(
            _write_part, ((images.size, part, folder) for part in parts), chunksize=1
        ),
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(-1, rounds):  # the first is the warm-up
        for kind in sorted(kinds, reverse=number % 2 == 0):  # neither is always first
            with tempfile.TemporaryDirectory(dir=root.parent) as folder:
                began = monotonic()
                kinds[kind](Path(folder) / "output")
                if number >= 0:
                    seconds[kind].append(monotonic() - began)
                if kind == "preprocess" and number < 0:
                    prepared = open_prepared(Path(folder) / "output/files")
                    assert sum(len(prepared.split(split)) for split in facts["rows"]) == count
    speed = {kind: count / statistics.median(taken) for kind, taken in seconds.items()}
    what = f"{count:,} {root.name} images to {images.size} x {images.size}"
    ours, theirs = speed["preprocess"], speed["pool"]
    report(Row("prepare", what, ours, "two-process Pillow pool", theirs, "images/s", target))


def _workspace(root: Path) -> Workspace:
    folder, scratch = root / "files", root / "scratch"
    folder.mkdir(parents=True)
    scratch.mkdir()
    return Workspace(folder, scratch, "benchmark", "benchmark", Project(root))


def _write_part(size: int, part: Sequence[Path], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    images = np.stack([_prepare(path.read_bytes(), size) for path in part])
    np.save(folder / f"{part[0].stem}.npy", images)


def _prepare(data: bytes, size: int) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box))


if __name__ == "__main__":
    main()
