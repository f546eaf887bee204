"""How fast `retrain predict` classifies a folder of images, against a plain loop.

    python -m benchmarks.batch_predict --rounds 3

Each round classifies the same JPEGs with the same package in two ways, in turns, each in a process
of its own: with `tasks.predict` (each core a process that has loaded the package; units, finished
files, one Parquet file), and with the loop that one would write: decode with the package's
decoder, a batch through the network with all cores as PyTorch's threads, a table at the end. Both
write the same columns. Without Prefect, whose server a run starts or finds.

`started` is images/s after the first 1,000 images for each core, which are a unit each: what a
large input gets. `whole` is all images by the seconds of the process, with its imports. The first
round is left out as warm-up. The figures are medians of the rounds, and their ratios to the loop.
"""

import argparse
import hashlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from joblib import cpu_count

from benchmarks.table import Row, report

# The network and the side of the images: small as shipped, and a ViT 192 x 6 that takes 64 x 64.
SETTINGS = {
    "vit 64 x 2, 8 x 8 grey": (8, 1, {"patch_size": 4, "hidden_size": 64, "layers": 2, "heads": 4}),
    "vit 192 x 6, 64 x 64 RGB": (
        64, 3, {"patch_size": 8, "hidden_size": 192, "layers": 6, "heads": 3},
    ),
}  # fmt: skip
CLASSES = [f"class {number}" for number in range(10)]
BATCH, FIRST = 256, 1000


@dataclass
class Clock:
    """Notes when how many images were done."""

    done: list[tuple[float, int]]

    def add(self, images: int) -> None:
        """Some more images are done."""
        before = self.done[-1][1] if self.done else 0
        self.done.append((monotonic(), before + images))

    @property
    def speed(self) -> float:
        """Images/s after the start."""
        wanted = FIRST * cpu_count()
        began, first = next((each for each in self.done if each[1] >= wanted), self.done[0])
        ended, rows = self.done[-1]
        return (rows - first) / (ended - began) if ended > began else 0.0


def main() -> None:
    """Runs the rounds and prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--way", choices=("ours", "loop"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        clock = Clock([])
        {"ours": ours, "loop": loop}[options.way](options.folder, clock)
        print(json.dumps(clock.speed))
        return
    for name, (size, channels, settings) in SETTINGS.items():
        with tempfile.TemporaryDirectory() as place:
            prepare(Path(place), size, channels, settings, options.rows)
            compare(name, Path(place), options.rounds, options.rows)


def compare(name: str, folder: Path, rounds: int, rows: int) -> None:
    """Runs the rounds with one network."""
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds + 1):
        for way in random.sample(("ours", "loop"), 2):
            began = monotonic()
            command = [sys.executable, "-m", "benchmarks.batch_predict"]
            done = subprocess.run(
                [*command, "--way", way, "--folder", str(folder)],
                check=True, stdout=subprocess.PIPE,
            )  # fmt: skip
            whole = rows / (monotonic() - began)
            found.setdefault((way, "whole"), []).append(whole)
            found.setdefault((way, "started"), []).append(json.loads(done.stdout))
    speeds = {each: statistics.median(values[1:]) for each, values in found.items()}
    for figure, target in (("started", "≥ 0.9"), ("whole", "-")):
        report(
            Row(
                "batch_predict", f"{name}, {figure}", speeds["ours", figure],
                "plain loop", speeds["loop", figure], "images/s", target,
            )
        )  # fmt: skip


def prepare(folder: Path, size: int, channels: int, settings: dict[str, int], rows: int) -> None:
    """A package with a network of random weights, and a folder of JPEGs of 160 x 120."""
    import numpy as np
    import torch
    from PIL import Image

    import models
    from tasks.promote.package import write_package

    torch.manual_seed(0)
    network = models.build("vit", settings, (size, size, channels), len(CLASSES))
    images = {"size": size, "channels": channels, "resize": "crop"}
    models.save(
        network, folder / "model", family="vit", settings=settings, labels=CLASSES, images=images
    )
    write_package(folder / "model", "fp32", dict.fromkeys(CLASSES, 1), folder / "package")
    rng = np.random.default_rng(0)
    (folder / "images").mkdir()
    coarse = rng.integers(0, 256, (rows, 6, 8, 3), np.uint8)
    for row in range(rows):
        pixels = np.kron(coarse[row], np.ones((20, 20, 1), np.uint8))
        Image.fromarray(pixels).save(folder / "images" / f"{row:06}.jpg", quality=90)


def ours(folder: Path, clock: Clock) -> None:
    """The project's way, without the registry."""
    from retrain.project import Project
    from retrain.registry.versions import ModelVersion
    from retrain.store import Store
    from tasks.data import package
    from tasks.data.champion import Registered
    from tasks.predict import predict
    from tasks.predict.inputs import open_source

    version = ModelVersion(
        name="benchmark", weights="", package_digest=package.digest_of_folder(folder / "package"),
        train_digest="", train_key=None, start=None, family="vit", images={}, classes=None,
        metrics={}, data=None, commit=None, run_id="", version=1, aliases=(), verdict=None,
        created="",
    )  # fmt: skip
    registered = Registered(Project(folder), version)
    registered.__dict__["package"] = folder / "package"  # as if it had been downloaded
    source = open_source(folder / "images", "images", None)
    with noted(predict, clock):
        predict.predict(registered, source, folder / "ours.parquet", Store(folder / "store"))


@contextmanager
def noted(predict: object, clock: Clock) -> Iterator[None]:
    """Notes when each unit is done, and how many images it has."""
    console = predict.console  # type: ignore[attr-defined]
    progress = console.counted

    @contextmanager
    def with_clock(name: str, total: int) -> Iterator[object]:
        with progress(name, total) as show:

            def both(rows: int) -> None:
                clock.add(rows)
                show(rows)

            yield both

    console.counted = with_clock
    try:
        yield
    finally:
        console.counted = progress


def loop(folder: Path, clock: Clock) -> None:
    """What one would write by hand, with the same decoder and the same columns."""
    import pandas as pd
    import torch

    import models
    from models.image import to_arrays

    torch.set_num_threads(cpu_count())
    classifier = models.load(folder / "model")
    size, channels, resize = (classifier.images[name] for name in ("size", "channels", "resize"))
    files = sorted((folder / "images").iterdir())
    rows = []
    with torch.inference_mode():
        for first in range(0, len(files), BATCH):
            some = files[first : first + BATCH]
            encoded = [file.read_bytes() for file in some]
            pixels = torch.from_numpy(to_arrays(encoded, size, channels, resize))
            given = torch.softmax(classifier.module(pixels), dim=1)
            for file, data, row in zip(some, encoded, given.numpy(), strict=True):
                label = classifier.labels[row.argmax()]
                rows.append((file.name, label, row, hashlib.sha256(data).hexdigest(), None))
            clock.add(len(some))
    columns = ["path", "label", "probabilities", "sha256", "error"]
    pd.DataFrame(rows, columns=columns).to_parquet(folder / "loop.parquet")


if __name__ == "__main__":
    main()
