"""How fast `train` trains, against what one would write instead.

    python -m benchmarks.train_throughput --rounds 5
    python -m benchmarks.train_throughput --settings gpu

Each round runs every way of training once, in turns, in one process: the same network,
hyperparameters, images, batch, epochs and, as many as the step chooses, threads. The
project's step is the real one, with images on disk, checkpoints, progress and MLflow. It is
compared with

- bare: a PyTorch loop over tensors in memory, of the GPU if there is one, without PyTorch's
  deterministic algorithms; on CPUs in fp32
- HF Trainer: that of `transformers`, with its own loader

The figures are images/s, training (from an epoch's first batch to its last) and epoch (from one
epoch's end to the next one's, with validation and all that is done besides). The first epoch of a
training is left out as warm-up; a training counts with the median of its epochs, and a way with the
median of its trainings. The ratio is that of the step to the bare loop.

`gpu` is ViT-B/16 at 224 pixels in bf16, which is left out without a GPU.
"""

import argparse
import logging
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import loops
from benchmarks.loops import Speed
from benchmarks.table import Row, report
from retrain.params import load_workload, resolve
from retrain.project import find_project
from retrain.workload import Workload

MIDDLING = {
    "images.size": 32,
    "images.channels": 3,
    "model.patch_size": 4,
    "model.hidden_size": 192,
    "model.layers": 6,
    "train.epochs": 3,
    "train.augment": {"flip": True, "shift": 4},
}
FP32 = {"train.precision": "fp32"}
VIT_B16 = {
    "images.size": 224,
    "images.channels": 3,
    "model.patch_size": 16,
    "model.hidden_size": 768,
    "model.layers": 12,
    "model.heads": 12,
    "train.batch_size": 256,
    "train.epochs": 2,
    "train.precision": "bf16",
    "train.augment": {"flip": True},
}
ALL = ("step", "bare", "hf_trainer")
GPU = "gpu"


@dataclass(frozen=True)
class Setting:
    """What is trained: the workload `vit` with other parameters, on as many random images.

    Attributes:
        name: What to call it.
        overrides: The parameters.
        rows: Training images.
        ways: Functions of `benchmarks.loops`.
        target: What the ratio to the bare loop should be.
    """

    name: str
    overrides: dict[str, Any]
    rows: int
    ways: Sequence[str] = ("step", "bare")
    target: str = "≥ 0.97"


SETTINGS = {
    "small": Setting("vit as shipped, 8 x 8 grey, fp32", FP32, 1237, ALL),
    "middling": Setting("vit 192 x 6, 32 x 32 RGB, fp32", MIDDLING | FP32, 1024, ALL),
    "auto": Setting("vit 192 x 6, precision auto", MIDDLING, 1024, target="≥ 1.6 (with AMX)"),
    GPU: Setting("ViT-B/16, 224 x 224 RGB, bf16", VIT_B16, 16384, ALL, "≥ 0.95"),
}


def main() -> None:
    """Runs the rounds and prints the medians and their ratios."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options = parser.parse_args()
    for name in options.settings:
        if name == GPU and not torch.cuda.is_available():
            print("gpu is left out: there is none")
        else:
            run(SETTINGS[name], options.rounds)


def run(setting: Setting, rounds: int) -> None:
    """Runs the rounds of a setting and prints what they gave."""
    project = find_project()
    workload = resolve(load_workload(project.params, "vit", setting.overrides), project)
    speeds: dict[str, list[Speed]] = {way: [] for way in setting.ways}
    with tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(workload.scale.threads or 1)  # as the step does
        images = loops.prepare(Path(folder) / "images", workload, setting.rows)
        for _ in range(rounds):
            for way in random.sample(setting.ways, len(setting.ways)):  # none is always first
                speeds[way].append(speed(way, workload, images))
    median = {
        way: Speed(
            statistics.median(each.training for each in found),
            statistics.median(each.epoch for each in found),
        )
        for way, found in speeds.items()
    }
    ours = median.pop("step")
    for way, theirs in median.items():
        target = setting.target if way == "bare" else "-"
        for part in ("training", "epoch") if way == "bare" else ("training",):
            figures = getattr(ours, part), way, getattr(theirs, part), "images/s"
            goal = target if part == "training" else "-"
            report(Row("train_throughput", f"{setting.name}, {part}", *figures, goal))


def speed(way: str, workload: Workload, images: Path) -> Speed:
    """Trains in one way; on CPUs all but the step are in fp32."""
    if way != "step" and not torch.cuda.is_available():
        hyperparameters = workload.train.model_copy(update={"precision": "fp32"})
        workload = workload.model_copy(update={"train": hyperparameters})
    found: Speed = getattr(loops, way)(workload, images)
    return found


if __name__ == "__main__":
    main()
