"""Estimates what a training takes, before it runs: parameters, memory and time.

The network is made on PyTorch's device `meta`, whose tensors have shapes but no memory. A forward
pass of two images there counts the operations, and the bytes that are kept for the backward pass.

Those bytes are what a training in fp32 keeps. Under autocast to bf16 it kept 0.52 of them in a
ResNet and a ConvNeXt, 0.77 in a ViT-B/16, and 1.06 in a narrow ViT with 257 tokens.

The time is rough. On a CPU it follows from the speed of a matrix product, measured now; a GPU's
speed is assumed, and may be wrong by a factor of three.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from humanize import intword, naturaldelta, naturalsize

from models.pretrained import find_folder, split_name
from retrain.hardware import free_gpu_memory, free_memory, gpu_capabilities
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.step import Forecast
from retrain.workload import Train, Workload
from tasks.train.checks import described, without_memory

if TYPE_CHECKING:
    import torch

    from models.network import Network

PROCESS_BYTES = 0.7e9  # Python, PyTorch, Ray and transformers; about the same for CUDA on a GPU
# Of an optimizer's moments in fp32, for a parameter that is trained.
MOMENT_BYTES = {"adamw": 8, "adam": 8, "sgd": 4}
KEPT = {"fp32": 1.0, "bf16": 0.75}  # share of an activation's bytes in fp32

# What a training reaches of the speed of NumPy's matrix product in fp32, on a CPU with AMX: a ViT
# 192 x 6 did 0.67 of it in fp32 and 1.6 in bf16, a ViT-B/16 0.70 and 2.0, in a core's own time.
CPU_SHARE = {"fp32": 0.7, "bf16": 2.0}
# FLOP/s of a training on a GPU: about 0.35 of NVIDIA's figures, for those of 2020 and later.
GPU_FLOPS = {"fp32": 10e12, "bf16": 150e12}

# From these limits on, a training is announced with its estimate.
MANY_SECONDS = 600.0
MUCH_OF_MEMORY = 0.25
# What `transformers` reads of pretrained weights: one of these, with the parts that it lists.
WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
HUB_SECONDS = 3.0  # to wait for the size of a download
IMAGES = 1000  # the time is given for so many, because the number of images is not known yet


@dataclass(frozen=True)
class Estimate:
    """The estimated size, memory and operations of a training.

    Attributes:
        parameters: The number of parameters of the network.
        memory: Bytes in each worker, in GPU memory if it trains there. Images that are held in
            memory (`scale.memory_gb`), what `train.lora.dropout` keeps, and the layer that a
            divided network calculates with, are not included.
        flops: FLOPs of a training step, for one image.
    """

    parameters: int
    memory: float
    flops: float

    def __str__(self) -> str:
        count = intword(self.parameters, "%.0f")
        return f"about {count} parameters, {naturalsize(self.memory)} of memory"


def forecast(workload: Workload, project: Project) -> Forecast:
    """Predicts what a training takes, and whether this machine has enough memory for it.

    The number of images is not known yet, so that the time is for 1,000. The classes are not known
    either, where `checks.labels` does not name them; they hardly matter.
    """
    fetches = download(workload, project)
    estimated = None if ray_cluster.is_remote() else estimate(workload, project)
    if estimated is None:
        return Forecast(fetches=fetches)
    workers, epochs = max(workload.scale.workers, 1), workload.train.epochs
    on_gpu = len(gpu_capabilities()) >= workers
    available = free_gpu_memory() if on_gpu else free_memory() / workers
    excess = says = None
    if estimated.memory > available:
        machine = "this machine" if workers == 1 else f"each of {workers} workers on this machine"
        where = "each GPU" if on_gpu else machine
        excess = (
            f"train: the training takes {estimated}, and {where} has {naturalsize(available)} "
            "free. Wait for what else runs there, or make train.micro_batch, images.size, the "
            "model or the number of workers on a machine smaller; --force tries it as it is."
        )
    is_large = estimated.memory > max(MUCH_OF_MEMORY * available, 2 * PROCESS_BYTES)
    precision = workload.train.precision
    on_cpu = 0.0 if on_gpu else cpu_flops() * CPU_SHARE[precision]
    seconds = IMAGES * estimated.flops / (on_cpu or workers * GPU_FLOPS[precision])
    if is_large or seconds * epochs > MANY_SECONDS:
        took = f"{IMAGES:,} images take about {naturaldelta(seconds)}"
        says = f"train: {estimated}; {took} in each of {epochs:,} epochs."
    return Forecast(says, excess, fetches)


def download(workload: Workload, project: Project) -> str | None:
    """A sentence if pretrained weights have to be downloaded, with their size; else None."""
    _, settings, _ = described(workload)
    name, commit = (getattr(settings, key, None) for key in ("pretrained", "pretrained_version"))
    if not (name and commit) or find_folder(name, project.root):
        return None
    from huggingface_hub import HfApi, try_to_load_from_cache

    model = split_name(name)[0]
    if any(try_to_load_from_cache(model, file, revision=commit) for file in WEIGHTS):
        return None
    bytes_by_kind, ask = Counter[str](), HfApi().model_info
    with suppress(Exception):  # no answer; the download will say what is wrong
        listed = ask(model, revision=commit, files_metadata=True, timeout=HUB_SECONDS).siblings
        for file in listed or ():
            if "/" not in file.rfilename:
                bytes_by_kind[Path(file.rfilename).suffix] += file.size or 0
    total = bytes_by_kind[".safetensors"] or bytes_by_kind[".bin"]
    size = f", {naturalsize(total)}" if total else ""
    return f"{name} will be fetched from the Hugging Face hub first{size}."


def estimate(workload: Workload, project: Project) -> Estimate | None:
    """Estimates a training.

    Args:
        workload: The network, and how it is trained.
        project: The clone.

    Returns:
        None for a pretrained network that has to be downloaded before its sizes are known, for a
        function that makes no network without memory, and for a head on embeddings, which is small.
    """
    train, images = workload.train, workload.images
    shape = (images.size, images.size, images.channels)
    network = without_memory(workload, project)
    if network is None:
        return None
    workers = max(workload.scale.workers, 1)
    on_gpu = len(gpu_capabilities()) >= workers
    parameters = sum(parameter.numel() for parameter in network.parameters())
    network.prefer_attention("cuda" if on_gpu else "cpu", train.precision)
    try:
        flops, activations = measure(network, shape)
    except Exception:  # of a network that needs values; `check_slowly` says what fails in training
        return None
    if train.lora:
        from tasks.train.network import add_adapters

        add_adapters(network, train.lora)
    stored = sum(parameter.numel() for parameter in network.parameters())
    trained = sum(
        parameter.numel() for parameter in network.parameters() if parameter.requires_grad
    )
    state = _state_bytes(train, stored, trained) / (
        workers if workload.scale.strategy == "fsdp" else 1
    )
    share = train.micro_batch or train.batch_size // workers
    return Estimate(
        parameters=parameters,
        memory=PROCESS_BYTES + state + share * activations * KEPT[train.precision],
        # A backward pass costs two forward passes, one of them for the gradients of the weights.
        flops=(2 if train.lora else 3) * flops,
    )


def _state_bytes(train: Train, stored: int, trained: int) -> float:
    """Bytes of a network's weights, with what is kept for each.

    A parameter has its weight, the copy of the best epoch's weights, that of autocast and that of
    the average; one that is trained has its gradient and the optimizer's moments, too (with AdamW
    16 bytes in all, as in Rajbhandari et al., 2020, section 3.1, for mixed precision).
    """
    copies = 8 + 4 * bool(train.ema) + 2 * (train.precision == "bf16")
    return copies * stored + (4 + MOMENT_BYTES[train.optimizer]) * trained


def measure(network: "Network", shape: tuple[int, ...]) -> tuple[float, float]:
    """Measures the operations and the memory of a training step in fp32, for one image.

    Args:
        network: On the device `meta`.
        shape: Height, width and channels of the images.

    Returns:
        FLOPs of the forward pass, a multiplication with its addition counting as two; and the bytes
        that it keeps for the backward pass, with the two largest gradients there.
    """
    import torch
    from torch.autograd.graph import saved_tensors_hooks
    from torch.overrides import TorchFunctionMode
    from torch.utils.flop_counter import FlopCounterMode

    weights = {parameter.untyped_storage() for parameter in network.parameters()}
    saved: set[torch.UntypedStorage] = set()

    def keep(tensor: "torch.Tensor") -> "torch.Tensor":
        saved.add(tensor.untyped_storage())
        return tensor

    class FusedAttention(TorchFunctionMode):
        """Keeps what a fused kernel does: its inputs, and not the weights of the attention."""

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is not torch.nn.functional.scaled_dot_product_attention:
                return function(*args, **kwargs or {})
            saved.update(tensor.untyped_storage() for tensor in args)
            with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
                return function(*args, **kwargs or {})

    count = 2  # a batch norm takes no single image
    images = torch.zeros((count, *shape), dtype=torch.uint8, device="meta")
    counter = FlopCounterMode(display=False)
    with saved_tensors_hooks(keep, lambda tensor: tensor), FusedAttention(), counter:
        network.train()(images)
    sizes = [storage.nbytes() for storage in saved - weights]
    return counter.get_total_flops() / count, (sum(sizes) + 2 * max(sizes, default=0)) / count


def cpu_flops() -> float:
    """FLOP/s of a matrix product in fp32 on all cores, now."""
    import numpy as np

    factor = np.ones((768, 768), np.float32)
    factor @ factor  # starts the threads
    began = perf_counter()
    factor @ factor
    return 2 * 768**3 / (perf_counter() - began)
