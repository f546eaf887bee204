"""How fast `evaluate` predicts, against a plain loop.

    python -m benchmarks.predict --rounds 5

Each round predicts the same images in the two ways, in turns, in one process: with
`tasks.evaluate.step.predict` (from disk, in chunks, on all cores), and with a loop over batches of
a tensor in memory, in fp32 with all cores as PyTorch's threads. Both are timed from the first
image to the last probability, the model's loading included; the first round is left out as
warm-up. `auto` is `tasks.evaluate.step.predict` in the precision that the project chooses.

The figures are images/s, medians of the rounds, and their ratios to the loop.
"""

import argparse
import random
import statistics
import tempfile
from pathlib import Path
from time import monotonic

import torch
from joblib import cpu_count

import models
from benchmarks import loops
from benchmarks.table import Row, report
from benchmarks.train_throughput import MIDDLING
from retrain.params import load_workload, resolve
from retrain.project import find_project
from tasks.data.shards import open_prepared
from tasks.evaluate.step import predict

SETTINGS = {
    "vit as shipped, 8 x 8 grey": ({}, 30_000),
    "vit 192 x 6, 32 x 32 RGB": (MIDDLING, 1_536),
}


def main() -> None:
    """Runs the rounds and prints the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    project = find_project()
    for name, (overrides, rows) in SETTINGS.items():
        workload = resolve(load_workload(project.params, "vit", overrides), project)
        batch = workload.evaluate.batch_size
        with tempfile.TemporaryDirectory() as folder:
            images = loops.prepare(Path(folder) / "images", workload, rows)
            data = open_prepared(images)
            x, _ = loops.tensors(data, "train")
            torch.manual_seed(0)
            settings = workload.model.model_dump(exclude={"family"})
            network = models.build(workload.model.family, settings, data.shape, len(data.labels))
            model = Path(folder) / "model"
            models.save(
                network, model, family=workload.model.family, settings=settings,
                labels=data.labels, images=data.images,
            )  # fmt: skip
            auto = workload.evaluate.precision
            stored = data.split("train").images
            precisions = {"step": "fp32", "auto": auto}
            found: dict[str, list[float]] = {way: [] for way in ("loop", *precisions)}
            for _ in range(rounds + 1):
                for way in random.sample(list(found), len(found)):
                    began = monotonic()
                    if way == "loop":
                        loop(model, x, batch)
                    else:
                        for _ in predict(model, stored, batch, precisions[way]):
                            pass
                    found[way].append(rows / (monotonic() - began))
        speeds = {way: statistics.median(each[1:]) for way, each in found.items()}
        for way, precision in (("step", "fp32"), ("auto", f"auto ({auto})")):
            report(
                Row(
                    "predict", f"{name}, {precision}", speeds[way],
                    "plain loop", speeds["loop"], "images/s", "≥ 0.97",
                )
            )  # fmt: skip


def loop(model: Path, images: torch.Tensor, batch: int) -> torch.Tensor:
    """What one would write by hand."""
    torch.set_num_threads(cpu_count())
    network = models.load(model).module
    found = []
    with torch.inference_mode():
        for first in range(0, len(images), batch):
            found.append(torch.softmax(network(images[first : first + batch]), dim=1))
    return torch.cat(found)


if __name__ == "__main__":
    main()
