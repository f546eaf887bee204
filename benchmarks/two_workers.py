"""How fast two workers train, against bare DDP with torchrun.

    python -m benchmarks.two_workers --rounds 3

Each round trains the ViT 192 x 6 of `train_throughput` in both ways, in turns, on random images in
fp32: the same network, hyperparameters, global batch and one thread for each of two CPU workers
(gloo).

- step: the project's, with `scale.workers: 2` on Ray Train, with checkpoints, progress and MLflow
- bare: a loop over tensors in memory inside `DistributedDataParallel`, started by torchrun

The figures are images/s from an epoch's first batch to its last, over both workers; the median of a
training's epochs but the first, and of the rounds. Start-up, which is seconds for torchrun and more
for Ray, is no part of it.
"""

import argparse
import json
import logging
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import destroy_process_group, get_rank, init_process_group

from benchmarks import loops
from benchmarks.table import Row, report
from benchmarks.train_throughput import FP32, MIDDLING
from retrain.params import load_workload, resolve
from retrain.project import find_project
from retrain.servers import ray_cluster
from retrain.workload import Workload
from tasks.data.shards import open_prepared

ROWS = 1024
WORKERS = 2


def main() -> None:
    """Runs the rounds and prints the medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bare", type=Path, help="images, as a process of torchrun")
    options = parser.parse_args()
    project, overrides = find_project(), MIDDLING | FP32 | {"scale.workers": WORKERS}
    workload = resolve(load_workload(project.params, "vit", overrides), project)
    if options.bare:
        bare(workload, options.bare)
        return
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    found: dict[str, list[float]] = {"step": [], "bare": []}
    with tempfile.TemporaryDirectory() as folder:
        images = loops.prepare(Path(folder) / "images", workload, ROWS)
        ray_cluster.connect()
        for number in range(options.rounds):
            for way in sorted(found, reverse=number % 2 == 0):
                speed = loops.step(workload, images).training if way == "step" else start(images)
                found[way].append(speed)
    step, by_hand = (statistics.median(found[way]) for way in ("step", "bare"))
    report(
        Row("two_workers", f"{WORKERS} workers", step, "torchrun", by_hand, "images/s", "≥ 0.95")
    )


def start(images: Path) -> float:
    """Trains with torchrun; returns images/s."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(WORKERS),
            "-m",
            "benchmarks.two_workers",
            "--bare",
            str(images),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return float(found["images_per_second"])


def bare(workload: Workload, images: Path) -> None:
    """The loop of one process of torchrun; the first one prints its result."""
    init_process_group("gloo")
    torch.set_num_threads(1)
    rank, batch, data = get_rank(), workload.train.batch_size, open_prepared(images)
    x, y = loops.tensors(data, "train")
    epochs, share = count(), batch // WORKERS

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(next(epochs)))
        for first in range(0, len(x) // batch * batch, batch):
            rows = order[first:][rank * share :][:share]
            yield x[rows], y[rows]

    found = loops.by_hand(workload, data, batches, rank, WORKERS)
    if rank == 0:
        print(json.dumps({"images_per_second": found.training}))
    destroy_process_group()


if __name__ == "__main__":
    main()
