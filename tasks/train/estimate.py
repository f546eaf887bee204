"""Estimates what a training takes, before it runs: parameters, memory and time.

The network is made on PyTorch's device `meta`, whose tensors have shapes but no memory. A forward
pass of two images there counts the operations, and the bytes that are kept for the backward pass.

Those bytes are what a training in fp32 keeps. Under autocast to bf16 it kept 0.52 of them in a
ResNet and a ConvNeXt, 0.77 in a ViT-B/16, and 1.06 in a narrow ViT with 257 tokens.

The time is rough. On a CPU it follows from the speed of a matrix product, measured now; a GPU's
speed is assumed, and may be wrong by a factor of three.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from retrain.hardware import free_gpu_memory, free_memory, gpu_capabilities
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.step import Forecast
from retrain.workload import Model, Scale, Train, Workload

if TYPE_CHECKING:
    from models.network import Network

# Bytes of a parameter: its weight, the copy of the best epoch's weights, and the average of the
# weights; and of one that is trained its gradient and the optimizer's moments in fp32 (with AdamW's
# two, 16 in all, as in Rajbhandari et al., 2020, section 3.1, for mixed precision).
WEIGHT_BYTES, BEST_BYTES, AVERAGE_BYTES, GRADIENT_BYTES = 4, 4, 4, 4
MOMENT_BYTES = {"adamw": 8, "adam": 8, "sgd": 4}
AUTOCAST_BYTES = 2  # the copy of the weights in bf16
BUCKET_BYTES = 4  # the gradients that workers exchange, not divided
PROCESS_BYTES = 0.7e9  # Python, PyTorch, Ray and transformers; about the same for CUDA on a GPU
KEPT = {"fp32": 1.0, "bf16": 0.75}  # share of an activation's bytes in fp32

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
MANY_FLOPS = 1e13  # below, the time is not worth measuring the machine

# Units of a number that is shown, the largest first, with their names.
COUNTS = ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1.0, ""))
BYTES = ((1e12, " TB"), (1e9, " GB"), (1e6, " MB"))
TIMES = ((86400.0, " days"), (3600.0, " hours"), (60.0, " minutes"), (1.0, " seconds"))


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
        count = _shown(self.parameters, COUNTS)
        trained = f" ({_shown(self.trained, COUNTS)} trained)"
        if self.trained >= self.parameters:
            trained = ""
        return f"about {count} parameters{trained}, {_shown(self.memory, BYTES)} of memory"


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
        None for a pretrained network that has to be downloaded before its sizes are known, for a
        function that makes no network without memory, and for a head on embeddings, which is small.
    """
    network = _without_memory(model, shape, classes, root)
    if network is None:
        return None
    workers = max(scale.workers, 1)
    on_gpu = len(gpu_capabilities()) >= workers
    precision, lora = hyperparameters.precision, hyperparameters.lora
    parameters = sum(each.numel() for each in network.parameters())
    network.prefer_attention("cuda" if on_gpu else "cpu", precision)
    try:
        flops, activations = measure(network, shape, on_gpu)
    except Exception:  # of a network that needs values; `check_slowly` says what fails in training
        return None
    if lora:
        from tasks.train.adapters import add_adapters

        add_adapters(network, lora)
    held = sum(each.numel() for each in network.parameters())
    trained = sum(each.numel() for each in network.parameters() if each.requires_grad)
    images = hyperparameters.micro_batch or hyperparameters.batch_size // workers
    return Estimate(
        parameters=parameters,
        trained=trained,
        memory=PROCESS_BYTES
        + _state_bytes(hyperparameters, scale, held, trained, on_gpu)
        + images * activations * KEPT[precision],
        # A backward pass costs two forward passes, one of them for the gradients of the weights.
        flops=(2 if lora else 3) * flops,
        on_gpu=on_gpu,
        precision=precision,
        workers=workers,
    )


def _state_bytes(
    hyperparameters: Train, scale: Scale, held: int, trained: int, on_gpu: bool
) -> float:
    """What the first worker has of weights, gradients and the optimizer's state, in bytes.

    Args:
        hyperparameters: Of the training.
        scale: On how many workers.
        held: How many parameters there are, with those of adapters.
        trained: How many of them are trained.
        on_gpu: Whether it trains on GPUs.
    """
    workers, is_divided = max(scale.workers, 1), scale.strategy == "fsdp"
    divided = (
        WEIGHT_BYTES
        + (AVERAGE_BYTES if hyperparameters.ema else 0)
        + (AUTOCAST_BYTES if hyperparameters.precision == "bf16" else 0)
    ) * held + (GRADIENT_BYTES + MOMENT_BYTES[hyperparameters.optimizer]) * trained
    # The first worker has all of the best epoch's weights. Workers that exchange gradients once a
    # batch add up all of them meanwhile.
    whole = 0 if on_gpu else BEST_BYTES * held
    if workers > 1 and (not is_divided or hyperparameters.micro_batch):
        whole += BUCKET_BYTES * trained
    return divided / (workers if is_divided else 1) + whole


def measure(network: "Network", shape: tuple[int, ...], on_gpu: bool) -> tuple[float, float]:
    """What a training step in fp32 costs for one image.

    Args:
        network: On the device `meta`.
        shape: Height, width and channels of the images.
        on_gpu: Whether it trains on a GPU, whose attention is fused with dropout too.

    Returns:
        FLOPs of the forward pass, a multiplication with its addition counting as two; and the bytes
        that it keeps for the backward pass, with the two largest gradients there.
    """
    import torch
    from torch.autograd.graph import saved_tensors_hooks
    from torch.overrides import TorchFunctionMode
    from torch.utils.flop_counter import FlopCounterMode

    weights = {each.untyped_storage() for each in network.parameters()}
    kept: set[torch.UntypedStorage] = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.add(tensor.untyped_storage())
        return tensor

    class FusedAttention(TorchFunctionMode):
        """Keeps what a fused kernel does: its inputs, and not the weights of the attention."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            attention = torch.nn.functional.scaled_dot_product_attention
            if function is not attention or (kwargs.get("dropout_p") and not on_gpu):
                return function(*args, **kwargs)
            for tensor in args:
                keep(tensor)
            with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
                return function(*args, **kwargs)

    count = 2  # a batch norm takes no single image
    images = torch.zeros((count, *shape), dtype=torch.uint8, device="meta")
    counter = FlopCounterMode(display=False)
    with saved_tensors_hooks(keep, lambda tensor: tensor), FusedAttention(), counter:
        network.train()(images)
    sizes = [storage.nbytes() for storage in kept - weights]
    return counter.get_total_flops() / count, (sum(sizes) + 2 * max(sizes, default=0)) / count


def _without_memory(
    model: Model, shape: tuple[int, ...], classes: int, root: Path
) -> "Network | None":
    family = import_module(f"models.{model.family}")
    if not hasattr(family, "without_memory"):
        return None
    settings = family.Settings.model_validate(model.model_dump(exclude={"family"}))
    network: Network | None = family.without_memory(settings, shape, root, classes)
    return network


def forecast(workload: Workload, project: Project) -> Forecast:
    """What a training would take, and whether that is more than this machine has.

    The number of images is not known yet, so that the time is for 1,000. The classes are not known
    either, where `checks.labels` does not name them; they hardly matter.
    """
    if ray_cluster.is_remote():
        return Forecast()
    images, train = workload.images, workload.train
    shape = (images.size, images.size, images.channels)
    classes = len(workload.checks.labels or ()) or 2
    found = estimate(workload.model, train, workload.scale, shape, classes, project.root)
    if found is None:
        return Forecast()
    excess, smaller = None, "train.micro_batch, "
    if found.memory > found.available:
        where = "each GPU has" if found.on_gpu else "this machine has"
        if found.workers > 1 and not found.on_gpu:
            smaller = f"scale.workers, {smaller}"
            where += f" for each of {found.workers} workers"
        free = _shown(found.available, BYTES)
        excess = (
            f"train: the training takes {found}, and {where} {free} free. Wait for what else runs "
            f"there, or make {smaller}images.size or the model smaller; --force tries it as it is."
        )
    return Forecast(notice(found, 1000, train.epochs), excess)


def notice(found: Estimate, images: int, epochs: int) -> str | None:
    """What is said about a training before it starts; None about a small one.

    Args:
        found: Its estimate.
        images: Of the training split.
        epochs: Of the training.
    """
    is_large = found.memory > max(MUCH_OF_MEMORY * found.available, 2 * PROCESS_BYTES)
    if found.flops * images * epochs < MANY_FLOPS and not is_large:
        return None
    seconds = found.seconds(images)
    if seconds * epochs < MANY_SECONDS and not is_large:
        return None
    each = f"{images:,} images take about {_shown(seconds, TIMES)} in each of {epochs:,} epochs"
    return f"train: {found}; {each}."


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


def _shown(number: float, units: tuple[tuple[float, str], ...]) -> str:
    """A number in the largest unit that there is at least one of; in the smallest, if none."""
    unit, name = next((each for each in units if number >= each[0]), units[-1])
    number /= unit
    is_whole = number >= 10 or not name
    return f"{number:,.0f}{name}" if is_whole else f"{number:.1f}{name}"
