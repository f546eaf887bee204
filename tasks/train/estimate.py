"""Estimates what a training takes, before it runs: parameters, memory and time.

Nothing of the network's size is allocated, and nothing heavy is imported.

Peak memory of the process, measured on two CPUs in a first epoch, and the estimate:

| ViT                      | batch | precision | measured | estimate |
|--------------------------|-------|-----------|----------|----------|
| 192 x 6, 65 tokens       | 256   | fp32      | 2.06 GB  | 2.09 GB  |
| 192 x 6, 65 tokens       | 256   | bf16      | 1.91 GB  | 1.78 GB  |
| 768 x 12 (B), 197 tokens | 8     | bf16      | 2.88 GB  | 3.52 GB  |

The time is rough. On a CPU it follows from the speed of a matrix product, measured now; a GPU's
speed is assumed, and may be wrong by a factor of three.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from time import perf_counter

from retrain.hardware import free_gpu_memory, free_memory, gpu_capabilities
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.step import Forecast
from retrain.workload import Model, Scale, Train, Workload

# Bytes of a parameter: its weight, the copy of the best epoch's weights, and the average of the
# weights; and of one that is trained its gradient and the optimizer's moments in fp32 (with AdamW's
# two, 16 in all, as in Rajbhandari et al., 2020, section 3.1, for mixed precision).
WEIGHT_BYTES, BEST_BYTES, AVERAGE_BYTES, GRADIENT_BYTES = 4, 4, 4, 4
MOMENT_BYTES = {"adamw": 8, "adam": 8, "sgd": 4}
AUTOCAST_BYTES = 2  # the copy of the weights in bf16
BUCKET_BYTES = 4  # the gradients that workers exchange, not divided
PROCESS_BYTES = 0.7e9  # Python, PyTorch, Ray and transformers; about the same for CUDA on a GPU

# What a training reaches of the speed of NumPy's matrix product in fp32, on a CPU with AMX: a ViT
# 192 x 6 did 0.67 of it in fp32 and 1.6 in bf16, a ViT-B/16 0.70 and 2.0, in a core's own time.
CPU_SHARE = {"fp32": 0.7, "bf16": 2.0}
# FLOP/s of a training on a GPU, by its compute capability: about 0.35 of NVIDIA's figures.
GPU_FLOPS = {
    "bf16": {9.0: 300e12, 8.0: 100e12, 0.0: 5e12},
    "fp32": {9.0: 20e12, 8.0: 6e12, 0.0: 4e12},
}

# A training is mentioned from here on.
MANY_SECONDS = 600.0
MUCH_OF_MEMORY = 0.25
# FLOPs over 1,000 images in all epochs; below, the time is not worth measuring the machine.
MANY_FLOPS = 1e13


@dataclass(frozen=True)
class Estimate:
    """What a training takes.

    Attributes:
        parameters: How many the network has.
        trained: How many are trained: fewer with adapters, which the network does not count.
        memory: Bytes in each worker, in GPU memory if it trains there. Images that are held in
            memory (`scale.memory_gb`), what `train.lora.dropout` keeps, and the layer that a
            divided network calculates with, are not included.
        flops: FLOPs of a training step, for one image.
        on_gpu: Whether it trains on GPUs.
        precision: Of the matrix products.
        workers: How many processes train.
    """

    parameters: int
    trained: int
    memory: float
    flops: float
    on_gpu: bool
    precision: str
    workers: int

    def seconds(self, images: int) -> float:
        """The time of a training on this machine, for a number of images over all epochs."""
        if not self.on_gpu:
            return images * self.flops / (_cpu_flops() * CPU_SHARE[self.precision])
        capability = min(gpu_capabilities())
        speeds = GPU_FLOPS[self.precision]
        speed = next(flops for least, flops in speeds.items() if capability >= least)
        return images * self.flops / speed / self.workers

    @property
    def available(self) -> float:
        """Bytes of memory that each worker can have on this machine, beside what runs there now."""
        return free_gpu_memory() if self.on_gpu else free_memory() / self.workers

    def __str__(self) -> str:
        trained = f" ({_count(self.trained)} trained)" if self.trained < self.parameters else ""
        return (
            f"about {_count(self.parameters)} parameters{trained}, {_bytes(self.memory)} of memory"
        )


def estimate(
    model: Model,
    hyperparameters: Train,
    scale: Scale,
    shape: tuple[int, ...],
    classes: int,
    root: Path,
) -> Estimate | None:
    """Estimates a training.

    Args:
        model: Which network.
        hyperparameters: How it is trained.
        scale: On how many workers.
        shape: Height, width and channels of the images.
        classes: How many there are.
        root: The project's folder.

    Returns:
        None for a pretrained network that has to be downloaded before its sizes are known.
    """
    family = import_module(f"models.{model.family}")
    declared = family.Settings.model_validate(model.model_dump(exclude={"family"}))
    settings = family.sized(declared, root)
    if settings is None:
        return None
    workers = max(scale.workers, 1)
    on_gpu = len(gpu_capabilities()) >= workers
    precision = hyperparameters.precision
    images = hyperparameters.micro_batch or hyperparameters.batch_size // workers
    held = trained = parameters = family.parameters(settings, shape, classes)
    lora = hyperparameters.lora
    if lora:
        trained = family.lora_parameters(settings, lora.r, classes)
        held += trained
    is_divided = scale.strategy == "fsdp"
    divided = (
        WEIGHT_BYTES
        + (AVERAGE_BYTES if hyperparameters.ema else 0)
        + (AUTOCAST_BYTES if precision == "bf16" else 0)
    ) * held + (GRADIENT_BYTES + MOMENT_BYTES[hyperparameters.optimizer]) * trained
    # The first worker's, which has all of the best epoch's weights. Those that exchange gradients
    # once a batch add up all of them meanwhile.
    whole = 0 if on_gpu else BEST_BYTES * held
    if workers > 1 and (not is_divided or hyperparameters.micro_batch):
        whole += BUCKET_BYTES * trained
    device = "cuda" if on_gpu else "cpu"
    activations = images * family.activations(settings, shape, device, precision)
    return Estimate(
        parameters=parameters,
        trained=trained,
        memory=PROCESS_BYTES + divided / (workers if is_divided else 1) + whole + activations,
        # A backward pass costs two forward passes, one of them for the gradients of the weights.
        flops=(2 if lora else 3) * family.flops(settings, shape),
        on_gpu=on_gpu,
        precision=precision,
        workers=workers,
    )


def forecast(workload: Workload, project: Project) -> Forecast:
    """What a training would take, and whether that is more than this machine has.

    The number of images is not known yet, so that the time is for 1,000. The classes are not known
    either, where `checks.labels` does not name them; they hardly matter.
    """
    images = workload.images
    shape = (images.size, images.size, images.channels)
    classes = len(workload.checks.labels or ())
    train = workload.train
    found = estimate(workload.model, train, workload.scale, shape, classes, project.root)
    if found is None or ray_cluster.is_remote():
        return Forecast()
    excess, smaller = None, "train.micro_batch, "
    if found.memory > found.available:
        where = "each GPU has" if found.on_gpu else "this machine has"
        if found.workers > 1 and not found.on_gpu:
            smaller = f"scale.workers, {smaller}"
            where += f" for each of {found.workers} workers"
        excess = (
            f"train: the training takes {found}, and {where} {_bytes(found.available)} free. Wait "
            f"for what else runs there, or make {smaller}images.size or the model smaller; --force "
            "tries it as it is."
        )
    thousand = 1000 * train.epochs
    if found.flops * thousand < MANY_FLOPS and not _is_large(found):
        return Forecast(excess=excess)
    epoch = _time(found.seconds(1000))
    says = f"train: {found}; 1,000 images take about {epoch} in each of {train.epochs:,} epochs."
    return Forecast(says, excess)


def notice(found: Estimate, images: int, epochs: int) -> str | None:
    """What is said about a training that is about to start; None about a small one.

    Args:
        found: Its estimate.
        images: Of the training split.
        epochs: Of the training.
    """
    if found.flops * images * epochs < MANY_FLOPS and not _is_large(found):
        return None
    seconds = found.seconds(images)
    if seconds * epochs < MANY_SECONDS and not _is_large(found):
        return None
    return f"train: {found}; about {_time(seconds)} an epoch, {epochs:,} epochs."


def _is_large(found: Estimate) -> bool:
    return found.memory > MUCH_OF_MEMORY * found.available and found.memory > 2 * PROCESS_BYTES


@cache
def _cpu_flops() -> float:
    """FLOP/s of a matrix product in fp32 on all cores, now."""
    import numpy as np

    side = 768
    factor = np.ones((side, side), np.float32)
    factor @ factor  # starts the threads
    took = []
    for _ in range(3):
        began = perf_counter()
        factor @ factor
        took.append(perf_counter() - began)
    return 2 * side**3 / min(took)


def _count(number: float) -> str:
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= unit:
            return f"{_digits(number / unit)} {name}"
    return f"{number:,.0f}"


def _bytes(number: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB")):
        if number >= 0.5 * unit:
            return f"{_digits(number / unit)} {name}"
    return f"{_digits(number / 1e6)} MB"


def _time(seconds: float) -> str:
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{_digits(seconds / unit)} {name}"
    return f"{_digits(seconds)} seconds"


def _digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"
