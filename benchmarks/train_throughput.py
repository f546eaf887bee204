"""How fast `train` trains, against the loop that one would write by hand.

    python -m benchmarks.train_throughput --rounds 5

Each round runs the real step (images on disk, checkpoints, progress, MLflow) and a bare PyTorch
loop over tensors in memory, in turns, in one process: the same network, recipe, batch, epochs and
threads (as many as the step chooses). The bare loop shuffles with `torch.randperm`, changes the
images with the step's function, validates after each epoch, and does nothing else.

- training: images/s from an epoch's first batch to its last
- epoch: images/s from an epoch's end to the next one's: with validation, and in the step with the
  checkpoint and with what it tells the console and MLflow

The first epoch of each training is left out as warm-up. A training counts with the median of its
epochs, and a kind of loop with the median of its trainings.

Result of 2026-11-21, two cores, 5 rounds: training 0.959 of the bare loop for the shipped workload
(one thread), 1.026 for 192 x 6 (two threads); epochs 0.902 and 1.011.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

import models
from retrain.artifact import Artifact
from retrain.project import Project, find_project
from retrain.step import Workspace
from retrain.workload import Workload, load_workload
from tasks.prepared import Prepared, open_prepared, shard_name
from tasks.train import train
from tasks.train.batches import Batches
from tasks.train.optimizer import learning_rate, make_optimizer


@dataclass(frozen=True)
class Setting:
    """What is trained: the workload `vit` with other parameters, on as many random images."""

    name: str
    overrides: dict[str, Any]
    rows: int


@dataclass(frozen=True)
class Speed:
    """Images per second, medians over a training's epochs but the first."""

    training: float
    epoch: float


SETTINGS = (
    Setting("vit as shipped, 8 x 8 grey", {}, rows=1237),
    Setting(
        "vit 192 x 6, 32 x 32 RGB",
        {
            "images.size": 32,
            "images.channels": 3,
            "model.patch_size": 4,
            "model.hidden_size": 192,
            "model.layers": 6,
            "train.epochs": 3,
            "train.augment": {"flip": True, "shift": 4},
        },
        rows=1024,
    ),
)


def main() -> None:
    """Runs the rounds and prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    for setting in SETTINGS:
        workload = load_workload(find_project().params, "vit", setting.overrides)
        with tempfile.TemporaryDirectory() as folder:
            images = prepare(Path(folder) / "images", workload, setting.rows)
            loops: dict[str, Callable[[], Speed]] = {
                "step": lambda: run_step(workload, images, Path(folder)),  # noqa: B023
                "bare": lambda: run_bare(workload, open_prepared(images)),  # noqa: B023
            }
            speeds: dict[str, list[Speed]] = {"step": [], "bare": []}
            for number in range(rounds):
                for name in sorted(loops, reverse=number % 2 == 0):  # neither is always first
                    speeds[name].append(loops[name]())
        print(f"{setting.name}, {torch.get_num_threads()} threads, {rounds} rounds")
        for part in ("training", "epoch"):
            step, bare = (
                statistics.median(getattr(speed, part) for speed in speeds[name])
                for name in ("step", "bare")
            )
            print(f"  {part:<8}  step {step:7.0f}  bare {bare:7.0f} images/s  ", end="")
            print(f"ratio {step / bare:.3f}", flush=True)


def prepare(folder: Path, workload: Workload, rows: int) -> Path:
    """Writes random images as `preprocess` does; what is in them does not change the speed."""
    random = np.random.default_rng(0)
    shape = (workload.images.size, workload.images.size, workload.images.channels)
    for split, count in (("train", rows), ("val", rows // 6)):
        (folder / split).mkdir(parents=True)
        images = random.integers(0, 256, (count, *shape), dtype=np.uint8)
        np.save(folder / split / shard_name(0), images)
        np.save(folder / split / "labels.npy", random.integers(0, 10, count))
    (folder / "labels.json").write_text(json.dumps([str(number) for number in range(10)]))
    (folder / "images.json").write_text(workload.images.model_dump_json())
    return folder


def run_step(workload: Workload, images: Path, folder: Path) -> Speed:
    """Trains with the step, from an empty workspace."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        root = Path(name)
        output, scratch = root / "output", root / "scratch"
        output.mkdir()
        scratch.mkdir()
        train(
            workload.model,
            workload.train,
            workload.scale,
            Artifact("preprocess", "benchmark", "benchmark", images, {}),
            Workspace(output, scratch, "benchmark", workload.name, Project(root)),
        )
        history = json.loads((output / "report" / "history.json").read_text())[1:]
    rows = open_prepared(images).split("train")
    batches = len(rows) // workload.train.batch_size
    trained = batches * workload.train.batch_size
    return Speed(
        statistics.median(epoch["images_per_second"] for epoch in history),
        statistics.median(trained / epoch["seconds"] for epoch in history),
    )


def run_bare(workload: Workload, data: Prepared) -> Speed:
    """Trains with the bare loop."""
    recipe = workload.train
    x, y, val_x, val_y = (
        torch.from_numpy(array)
        for name in ("train", "val")
        for split in (data.split(name),)
        for array in (split.images[np.arange(len(split))], split.labels)
    )
    torch.manual_seed(recipe.seed)
    settings = workload.model.model_dump(exclude={"family"})
    network = models.build(workload.model.family, settings, data.shape, len(data.labels))
    optimizer = make_optimizer(network, recipe)
    loss_of = torch.nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
    batches = len(x) // recipe.batch_size
    augment = Batches(len(x), recipe.batch_size, recipe.seed, rank=0, workers=1).augment
    step = 0
    training, epochs = [], []
    for _ in range(recipe.epochs):
        began = monotonic()
        network.train()
        order = torch.randperm(len(x))
        for first in range(0, batches * recipe.batch_size, recipe.batch_size):
            rows = order[first : first + recipe.batch_size]
            loss = loss_of(network(augment(x[rows], recipe.augment, step)), y[rows])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, batches * recipe.epochs, recipe)
            optimizer.step()
            step += 1
        training.append(batches * recipe.batch_size / (monotonic() - began))
        network.eval()
        with torch.inference_mode():
            for first in range(0, len(val_x), recipe.batch_size):
                rows = slice(first, first + recipe.batch_size)
                logits = network(val_x[rows])
                torch.nn.functional.cross_entropy(logits, val_y[rows]).item()
                (logits.argmax(1) == val_y[rows]).sum().item()
        epochs.append(batches * recipe.batch_size / (monotonic() - began))
    return Speed(statistics.median(training[1:]), statistics.median(epochs[1:]))


if __name__ == "__main__":
    main()
