"""Whether the precision that the project chooses learns as well as fp32, and how much faster.

    python -m benchmarks.precision --data FOLDER --seeds 3

Trains the ViT 192 x 6 of `train_throughput` with the project's step on real images, in fp32 and in
the precision that `auto` gives on this machine, in turns, once for each seed. FOLDER holds
`train.parquet` in the layout of the Hugging Face hub (columns `image` and `label`, such as
CIFAR-10); its first images are trained on and the next ones validate.

The figures are the best validation accuracy, mean and range over the seeds, and images/s, the
median of the trainings.

Result of 2026-11-21: see `README.md` beside this file.
"""

import argparse
import json
import logging
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks import loops
from benchmarks.table import Row, report
from benchmarks.train_throughput import MIDDLING
from models.image import to_array
from retrain.params import load_workload
from retrain.project import find_project
from retrain.workload import Workload
from tasks.data.shards import shard_name

ROWS = {"train": 4000, "val": 2000}


def main() -> None:
    """Runs the trainings and prints accuracy and speed of both precisions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    params = find_project().params
    hyperparameters = {"train.epochs": 3, "train.lr": 1e-3, "train.augment": {"flip": True}}
    auto = load_workload(params, "vit", MIDDLING | hyperparameters)
    found: dict[str, list[tuple[float, float]]] = {"fp32": [], auto.train.precision: []}
    with tempfile.TemporaryDirectory() as folder:
        images = prepare(options.data / "train.parquet", Path(folder), auto)
        for seed in range(options.seeds):
            for precision, results in found.items():
                change = {"seed": seed, "precision": precision}
                changed = auto.train.model_copy(update=change)
                results.append(learn(auto.model_copy(update={"train": changed}), images))
                print(seed, precision, results[-1], flush=True)
    medians = {
        name: [statistics.mean(accuracy for accuracy, _ in results),
               statistics.median(speed for _, speed in results)]
        for name, results in found.items()
    }  # fmt: skip
    chosen = auto.train.precision
    for number, unit in enumerate(("accuracy", "images/s")):
        figures = medians[chosen][number], "fp32", medians["fp32"][number]
        report(Row("precision", f"vit 192 x 6, auto ({chosen}), {unit}", *figures, unit))
    for precision, results in found.items():
        accuracies, speeds = zip(*results, strict=True)
        print(f"{precision}: accuracy {statistics.mean(accuracies):.4f}", end=" ")
        print(f"({min(accuracies):.4f} to {max(accuracies):.4f})", end=", ")
        print(f"{statistics.median(speeds):.1f} images/s")


def prepare(parquet: Path, folder: Path, workload: Workload) -> Path:
    """Writes the first images of a Parquet file as `preprocess` does."""
    rows = pq.read_table(parquet).slice(0, sum(ROWS.values())).to_pylist()
    labels = sorted({row["label"] for row in rows})
    size, channels = workload.images.size, workload.images.channels
    first = 0
    for split, count in ROWS.items():
        (folder / split).mkdir()
        part = rows[first : first + count]
        pixels = np.stack([to_array(r["image"]["bytes"], size, channels, "crop") for r in part])
        np.save(folder / split / shard_name(0), pixels)
        np.save(
            folder / split / "labels.npy", np.array([labels.index(row["label"]) for row in part])
        )
        first += count
    (folder / "labels.json").write_text(json.dumps(labels))
    images = workload.images.model_dump(include={"size", "channels", "resize"})
    (folder / "images.json").write_text(json.dumps(images))
    return folder


def learn(workload: Workload, images: Path) -> tuple[float, float]:
    """Trains once; returns the best validation accuracy and images/s."""
    facts, history = loops.run_step(workload, images)
    speed = statistics.median(epoch["images_per_second"] for epoch in history[1:])
    return facts["val_accuracy"], speed


if __name__ == "__main__":
    main()
