"""How fast `preprocess` prepares images, against the pool that one would write by hand.

    python -m benchmarks.prepare --cifar cifar10/test.parquet --rounds 3

The data: the JPEGs of a Parquet file of CIFAR-10 (columns `image`, a struct of `bytes` and `path`,
and `label`), as it is and as class folders, made into 64 x 64; and `--photos` JPEGs of 1,500 x
1,000 (quality 85, 4:2:0, some 300 kB), which are those images with noise, made into 224 x 224.

- preprocess: images/s of the real step, from its call to its return. Ray runs and has its workers.
- pool: images/s of a pool of two processes that runs already. Each reads the encoded images of a
  part, decodes and crops them with Pillow (no draft mode), scales them (bicubic) and writes them to
  a `.npy` file.

A kind counts with the median of its rounds; they take turns.

Result of 2026-11-21, two cores, 3 rounds: 1.68 times the pool at their own 32 x 32, 2.56 for photos
(300 of them). At 64 x 64 it was 1.42 from Parquet and 1.14 from class folders, when small images
were still scaled several at a time, in two thirds of Pillow's time.

What Pillow allows: from 32 to 64 an image takes 80 µs of a core, of which decoding takes 10,
scaling 49, and reading, writing and Python 20; the pool takes 112. A plan of Ray Data takes 0.12 s
in which nothing is prepared, whatever the number of images. Of 10,000 images that is a fifth of the
time: 80 / 2 + 4 µs for each and 0.12 s are 0.56 s, where the pool takes 0.63; and from class
folders the listing of the files is added.
"""

import argparse
import io
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
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
from tasks.data.shards import open_prepared
from tasks.preprocess.step import preprocess
from tasks.validate.step import validate

DATA = Data(path="data")
PROCESSES = 2
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
        multiprocessing.get_context("spawn").Pool(PROCESSES) as pool,
        tempfile.TemporaryDirectory() as name,
    ):
        root = Path(name)
        write_data(root, options.cifar, options.photos)
        ray_cluster.connect()
        list(each(lambda _: abs, range(8), seconds=1e6))  # starts the workers
        for data, format, size, target in (
            # At 64 x 64, as much as scaling by Pillow allows.
            ("parquet", "parquet", 64, "≥ 1.1"),
            ("parquet", "parquet", 32, "≥ 2.0"),
            ("folders", "folders", 64, "≥ 0.9"),
            ("photos", "folders", 224, "≥ 2.0"),
        ):
            compare(root / data, format, Images(size=size), pool, options.rounds, target)
        ray_cluster.disconnect()


def write_data(root: Path, cifar: Path, photos: int) -> None:
    """Lays the three kinds of data out as `pull` does, below `<kind>/data`."""
    table = pq.read_table(cifar)
    (root / "parquet/data").mkdir(parents=True)
    (root / "parquet/data/images.parquet").symlink_to(cifar.resolve())
    rows = table["image"].combine_chunks()
    encoded = rows.field("bytes").to_pylist()
    labels = table["label"].to_pylist()
    for number, (label, image) in enumerate(zip(labels, encoded, strict=True)):
        path = root / f"folders/data/{label}/{number:05}.jpg"
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


def compare(root: Path, format: str, images: Images, pool: Pool, rounds: int, target: str) -> None:
    """Prepares the images of a folder in turns, and prints the figures."""
    found = index.build(root / "data", DATA)
    assert found.format == format
    pq.write_table(found.images, root / index.FILE)
    pulled = Artifact("pull", "", "", root, {"image_column": found.files.image_column})
    space = _workspace(root / f"validated-{images.size}")
    facts = validate(DATA, Checks(min_images_per_class=1), Gate(), pulled, space)
    count = sum(facts["rows"].values())
    validated = Artifact("validate", "", "", space.folder, facts)
    paths = sorted((root / "data").rglob("*.*"))

    kinds: dict[str, Callable[[Path], Any]] = {
        "preprocess": lambda folder: preprocess(images, pulled, validated, _workspace(folder)),
        "pool": lambda folder: run_pool(pool, paths, images.size, folder),
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
    what = f"{count:,} as {root.name} to {images.size} x {images.size}"
    ours, theirs = speed["preprocess"], speed["pool"]
    report(Row("prepare", what, ours, "two-process Pillow pool", theirs, "images/s", target))


def _workspace(root: Path) -> Workspace:
    folder, scratch = root / "files", root / "scratch"
    folder.mkdir(parents=True)
    scratch.mkdir()
    return Workspace(folder, scratch, "benchmark", "benchmark", Project(root))


def run_pool(pool: Pool, paths: Sequence[Path], size: int, folder: Path) -> None:
    """Prepares images as one would by hand: a row group, or some files, at a time."""
    folder.mkdir()
    parts: list[list[Path] | tuple[Path, int]]
    if paths[0].suffix == ".parquet":
        row_groups = pq.ParquetFile(paths[0]).num_row_groups
        parts = [(paths[0], number) for number in range(row_groups)]
    else:
        parts = [list(paths[first : first + PART]) for first in range(0, len(paths), PART)]
    work = partial(_write_part, size)
    pool.starmap(
        work, ((part, folder / f"{number}.npy") for number, part in enumerate(parts)), chunksize=1
    )


def _write_part(size: int, part: list[Path] | tuple[Path, int], target: Path) -> None:
    if isinstance(part, tuple):
        path, row_group = part
        table = pq.ParquetFile(path).read_row_group(row_group, columns=["image"])
        encoded = [image["bytes"] for image in table["image"].to_pylist()]
    else:
        encoded = [path.read_bytes() for path in part]
    np.save(target, np.stack([_prepare(data, size) for data in encoded]))


def _prepare(data: bytes, size: int) -> np.ndarray:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box))


if __name__ == "__main__":
    main()
