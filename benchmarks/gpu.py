"""How much of a GPU training uses: ViT-B/16 at 224 pixels in bf16.

    python -m benchmarks.gpu --rounds 3

Each round trains in every way once, in turns, in one process, on random images: the project's
step (with PyTorch's deterministic algorithms), a plain loop over tensors in the GPU's memory
(without), and the HF Trainer with its defaults. The figures are images/s from an epoch's first
batch to its last (the first epoch left out; medians) and, for a GPU whose peak is known, the share
of it: 3 x the FLOPs of a forward pass (`flops` of `models.vit`: matrix products only, a
multiplication with its addition is two; a backward pass is two forward passes) x images/s / the
dense bf16 peak that its maker states.

Without a GPU it runs a small network, to show that it runs.

Result: on an H200, 2026-11-27, the step took 2,516 images/s, 27 % of the peak, which is 0.923 of
the plain loop; `README.md` beside this file has the others, and what they are worth.
"""

import argparse
import logging
import random
import statistics
import tempfile
from pathlib import Path

import torch

from benchmarks import loops
from benchmarks.table import Row, report
from models import vit
from retrain.params import load_workload
from retrain.project import find_project

WAYS = ("step", "bare", "hf_trainer")
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
SMALL = VIT_B16 | {
    "images.size": 64,
    "model.hidden_size": 192,
    "model.layers": 4,
    "model.heads": 3,
    "train.batch_size": 32,
}
# Dense bf16 FLOP/s without sparsity, as NVIDIA states them, by a part of the device's name.
PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}


def main() -> None:
    """Runs the rounds and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    on_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    workload = load_workload(find_project().params, "vit", VIT_B16 if on_gpu else SMALL)
    settings = workload.model.model_dump(exclude={"family"})
    shape = (workload.images.size, workload.images.size, workload.images.channels)
    flops = 3 * vit.Settings.model_validate(settings).flops(shape)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        images = loops.prepare(Path(folder) / "images", workload, rows=16384 if on_gpu else 256)
        for _ in range(rounds):
            for way in random.sample(WAYS, len(WAYS)):
                found[way].append(getattr(loops, way)(workload, images).training)
    print(f"{device}, {flops / 1e9:.2f} GFLOP an image, {rounds} rounds")
    peak = next((peak for name, peak in PEAKS.items() if name in device), None)
    for way, speeds in found.items():
        speed = statistics.median(speeds)
        share = f"  {speed * flops / peak:.1%} of the peak" if peak else ""
        print(f"  {way:<10} {speed:8.1f} images/s{share}", flush=True)
    ours = statistics.median(found.pop("step"))
    for way, speeds in found.items():
        theirs = statistics.median(speeds)
        report(Row("gpu", f"ViT-B/16 or small, {device}", ours, way, theirs, "images/s"))


if __name__ == "__main__":
    main()
