"""How fast each training loop is, against the same loop written by hand.

    python -m benchmarks.training_loops --rounds 3

The network is a ViT 192 x 6 on 1,024 random images of 32 x 32, in fp32, in one process; the two
ways of a pair run in turns. The project's side is the real step, with checkpoints, progress and
MLflow.

- `huggingface`: the Trainer of `transformers` in a training function of one's own, against the
  Trainer as one would call it
- `ray_data`: images that Ray Data decodes meanwhile, against a plain loop in `TorchTrainer` over
  the batches of Ray Data, from Parquet

The figures are images/s of training (of whole epochs with evaluation for `huggingface`), the median
of a training's epochs but the first, and of the trainings.
"""

import argparse
import logging
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import loops
from benchmarks.table import Row, report
from benchmarks.train_throughput import FP32, MIDDLING
from models.image import to_array
from retrain.params import load_workload, resolve
from retrain.project import find_project
from retrain.workload import Workload
from tasks.data.shards import open_prepared

ROWS = 1024


def changed(workload: Workload, **sections: dict[str, Any]) -> Workload:
    """A workload with other parameters."""
    parts = {
        name: getattr(workload, name).model_copy(update=values) for name, values in sections.items()
    }
    return workload.model_copy(update=parts)


def huggingface(workload: Workload, images: Path) -> float:
    """The step with the Trainer in a training function."""
    best = workload.train.best.model_copy(update={"metric": "eval_accuracy"})
    chosen = {
        "function": "examples.huggingface:train",
        "arguments": {"trainer": {"dataloader_drop_last": True}},
        "best": best,
    }
    history = loops.run_step(changed(workload, train=chosen), images)[1]
    rows = ROWS // workload.train.batch_size * workload.train.batch_size
    return rows / statistics.median(entry["seconds"] for entry in history[1:])


def ray_data(workload: Workload, images: Path) -> float:
    """The step with images that Ray Data decodes while it trains."""
    streamed = changed(workload, images={"storage": "source"})
    return loops.step(streamed, *loops.leave_undecoded(images)).training


def ray_data_by_hand(workload: Workload, images: Path) -> float:
    """A plain loop in `TorchTrainer`, over the batches of a plan of Ray Data."""
    import ray.data
    from ray.train import RunConfig, ScalingConfig, get_dataset_shard
    from ray.train.torch import TorchTrainer

    from tasks.compute.ray_data import connect

    connect()
    data, batch = open_prepared(images), workload.train.batch_size
    size, _, channels = data.shape

    def decode(rows: dict[str, Any]) -> dict[str, Any]:
        decoded = np.stack([to_array(data, size, channels, "stretch") for data in rows["image"]])
        return {"image": decoded, "label": rows["label"]}

    speeds: list[float] = []

    def train(_: dict[str, Any]) -> None:
        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for rows in get_dataset_shard("train").iter_torch_batches(
                batch_size=batch, drop_last=True, local_shuffle_buffer_size=ROWS // 2
            ):
                yield rows["image"], rows["label"]

        speeds.append(loops.by_hand(workload, data, batches).training)

    _, pulled = loops.leave_undecoded(images)
    table = ray.data.read_parquet(str(pulled / "data"))
    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            train,
            train_loop_config={},
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(storage_path=folder),
            datasets={"train": table.map_batches(decode, batch_size=batch)},
        ).fit()
    return speeds[0]


PAIRS: dict[str, tuple[Callable[..., float], Callable[..., float]]] = {
    "huggingface": (huggingface, lambda *given: loops.hf_trainer(*given).epoch),
    "ray_data": (ray_data, ray_data_by_hand),
}


def main() -> None:
    """Runs the rounds of each pair, and prints the medians and their ratio."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loops", nargs="+", choices=PAIRS, default=list(PAIRS))
    options = parser.parse_args()
    project = find_project()
    workload = resolve(load_workload(project.params, "vit", MIDDLING | FP32), project)
    with tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(workload.scale.threads or 1)  # as the step does
        images = loops.prepare(Path(folder) / "images", workload, ROWS)
        for name in options.loops:
            found: tuple[list[float], list[float]] = ([], [])
            for number in range(options.rounds):
                for side in (0, 1) if number % 2 else (1, 0):
                    found[side].append(PAIRS[name][side](workload, images))
            ours, theirs = map(statistics.median, found)
            figures = ours, "by hand", theirs, "images/s"
            report(Row("training_loops", f"loop {name}", *figures, "≥ 0.95"))


if __name__ == "__main__":
    main()
