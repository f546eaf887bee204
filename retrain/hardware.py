"""Decides the precision and the threads of a network from the hardware that calculates it.

It follows a rule and does not measure: both are part of the key of the trained model, which must
not depend on how busy the machine is.
"""

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any, Literal

Precision = Literal["fp32", "bf16"]

# FLOPs of a forward pass over a batch; from here on it counts as large. Below, most of the time
# goes into calls of many small kernels: bfloat16 only adds conversions, and threads wait for each
# other.
LARGE = 1e9

BF16_INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16"})
# On what else of a CPU it depends how numbers are rounded: PyTorch has kernels for each.
INSTRUCTIONS = BF16_INSTRUCTIONS | {"avx2", "avx512f"}
BF16_CAPABILITY = 8.0  # of an NVIDIA GPU: Ampere and later


@dataclass(frozen=True)
class Node:
    """A machine of a cluster.

    Attributes:
        cores: The number of cores that a process may use.
        gpus: The compute capability of each GPU.
        has_bf16: Whether its CPU calculates in bfloat16.
    """

    cores: int
    gpus: tuple[float, ...]
    has_bf16: bool


def this_node() -> Node:
    """This machine, with its GPUs that are hidden from this process."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return _here()


def _here() -> Node:
    """This machine, with the GPUs that this process may use."""
    return Node(_cores(), gpu_capabilities(), not BF16_INSTRUCTIONS.isdisjoint(_cpu().split()))


def _cores() -> int:
    """The number of cores that this process may use, by the limits of a container too."""
    from joblib import cpu_count

    return int(cpu_count())


def precision(flops: float, workers: int = 0, nodes: tuple[Node, ...] = ()) -> Precision:
    """Decides the precision of a network's matrix products.

    It is bfloat16 if the processor supports it and the work is large. With eager attention,
    two cores with AVX512_BF16 trained 2.6 to 3 times as many images/s in bf16 (ViT 128 x 4, 192 x 6
    and 384 x 12, batches of 64 to 32), and 0.9 times as many at 64 x 2, which this rule leaves in
    fp32.

    Args:
        flops: The operations of a forward pass over a batch.
        workers: The number of the training's workers; 0 is the process itself.
        nodes: The machines that may train; none is this one.
    """
    return "bf16" if flops >= LARGE and has_bf16(workers, nodes) else "fp32"


def threads(
    flops: float, workers: int, configured: int | str | None, nodes: tuple[Node, ...] = ()
) -> int | None:
    """Decides how many CPU threads each worker of a training uses.

    On two idle cores, two threads gained 5 to 20 % with a small step and 45 % at 6.6 GFLOP; where
    another program had one of the cores they made a small step 10 to 100 times slower.

    Args:
        flops: The operations of a forward pass over a batch, of all workers.
        workers: The number of the training's workers; 0 is the process itself.
        configured: The configured value; a number is returned as it is.
        nodes: The machines that may train, among which the workers are spread; none is this one.

    Returns:
        The number; None for a training on GPUs, where it changes nothing.
    """
    sharing, machines = max(1, workers), nodes or (_here(),)
    if sum(len(each.gpus) for each in machines) >= sharing:
        return None
    if isinstance(configured, int):
        return configured
    if flops / sharing < LARGE:
        return 1
    return max(1, min(each.cores for each in machines) // ceil(sharing / len(machines)))


def find_compiler(on_gpu: bool) -> str | None:
    """The compiler that `torch.compile` would call: for C on a GPU (by Triton), for C++ on a CPU.

    Args:
        on_gpu: Whether the network is trained on a GPU.

    Returns:
        The path of the compiler; None if it is missing.
    """
    variable, usual = ("CC", "gcc") if on_gpu else ("CXX", "g++")
    return shutil.which(os.environ.get(variable) or usual)


@cache
def has_bf16(workers: int = 0, nodes: tuple[Node, ...] = ()) -> bool:
    """Whether a network is calculated on processors that have bfloat16.

    They are the GPUs if there is one for each worker that PyTorch can use, else the CPUs. PyTorch
    is not imported.

    Args:
        workers: The number of a training's workers; 0 is the process itself.
        nodes: The machines; none is this one.
    """
    machines = nodes or (_here(),)
    gpus = [gpu for each in machines for gpu in each.gpus]
    if len(gpus) >= max(1, workers):
        return min(gpus) >= BF16_CAPABILITY
    return all(each.has_bf16 for each in machines)


@cache
def machine() -> dict[str, Any]:
    """What this machine is, for the record of what is made on it."""
    models = [line for line in _cpu().splitlines() if line.startswith("model name")]
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "instructions": sorted(INSTRUCTIONS.intersection(_cpu().split())),
        "cores": _cores(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "accelerators": sorted(gpu.name for gpu in gpus()),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    """What Linux says of the CPU; empty on other systems."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def gpu_capabilities() -> tuple[float, ...]:
    """The compute capability of each NVIDIA GPU that PyTorch can use, the least first."""
    return tuple(sorted(gpu.capability for gpu in gpus()))


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU.

    Attributes:
        name: The name of the product.
        capability: The compute capability of the GPU.
    """

    name: str
    capability: float


@cache
def gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that PyTorch can use.

    The driver's program is asked, in 0.1 s or less: to ask PyTorch costs its import, of over a
    second, and a context on each GPU. It is not asked where PyTorch is a build for CPUs.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    is_hidden = visible in ("", "-1")
    if is_hidden or version("torch").endswith("+cpu") or not shutil.which("nvidia-smi"):
        return ()
    answer = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid,name,compute_cap", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
    )
    listed: dict[str, Gpu] = {}
    for line in answer.stdout.splitlines():
        # Without a driver or a GPU, a sentence; `[N/A]` for what a GPU does not tell.
        with suppress(ValueError):
            uuid, name, capability = (field.strip() for field in line.split(", "))
            listed[uuid] = Gpu(name, float(capability))
    if os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":  # the fastest come first
        listed = dict(sorted(listed.items(), key=lambda each: -each[1].capability))
    if visible is None:
        return tuple(listed.values())
    chosen: list[Gpu] = []
    for entry in visible.split(","):
        named = [
            gpu
            for number, (uuid, gpu) in enumerate(listed.items())
            # The part of a GPU has a name of its own: any of them may be its.
            if entry == str(number) or uuid.startswith(entry) or entry.startswith("MIG-")
        ]
        chosen += named[-1:]
    return tuple(chosen)
