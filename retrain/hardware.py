"""Decides the precision and the threads of a network from this machine's hardware.

By a rule, not by a measurement, because they are part of the key of the trained model: it must not
depend on how busy the machine is.
"""

import os
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

Precision = Literal["fp32", "bf16"]

# FLOPs of a forward pass over a batch; from here on it counts as large. Below, most of the time
# goes into calls of many small kernels: bfloat16 only adds conversions, and threads wait for each
# other.
LARGE = 1e9

BF16_INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16"})
BF16_CAPABILITY = 8.0  # of an NVIDIA GPU: Ampere and later


def precision(flops: float) -> Precision:
    """Decides the precision of a network's matrix products on this machine.

    It is bfloat16 if the processor supports it and the work is large. With eager attention,
    two cores with AVX512_BF16 trained 2.6 to 3 times as many images/s in bf16 (ViT 128 x 4, 192 x 6
    and 384 x 12, batches of 64 to 32), and 0.9 times as many at 64 x 2, which this rule leaves in
    fp32.

    Args:
        flops: Of a forward pass over a batch.
    """
    return "bf16" if flops >= LARGE and has_bf16() else "fp32"


def threads(flops: float, workers: int, wanted: int | str | None) -> int | None:
    """Decides how many CPU threads each worker of a training uses.

    On two idle cores, two threads gained 5 to 20 % with a small step and 45 % at 6.6 GFLOP; where
    another program had one of the cores they made a small step 10 to 100 times slower.

    Args:
        flops: Of a forward pass over a batch, of all workers.
        workers: Of the training; 0 is the process itself.
        wanted: The configured value; a number is returned as it is.

    Returns:
        None where the training runs on GPUs, where the number changes nothing.
    """
    sharing = max(1, workers)
    if len(gpu_capabilities()) >= sharing:
        return None
    if isinstance(wanted, int):
        return wanted
    if flops / sharing < LARGE:
        return 1
    from joblib import cpu_count  # knows the limits of a container

    return max(1, int(cpu_count()) // sharing)


@cache
def has_bf16() -> bool:
    """Whether this machine has a processor for networks that calculates in bfloat16.

    It is the GPU if there is one that PyTorch can use, else the CPU. PyTorch is not imported.
    """
    capabilities = gpu_capabilities()
    if capabilities:
        return min(capabilities) >= BF16_CAPABILITY
    try:
        cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except FileNotFoundError:  # no Linux
        return False
    return not BF16_INSTRUCTIONS.isdisjoint(cpu.split())


@cache
def gpu_capabilities() -> tuple[float, ...]:
    """The compute capability of each NVIDIA GPU that PyTorch can use; PyTorch is not imported."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible in ("", "-1")
    if hidden or version("torch").endswith("+cpu") or not shutil.which("nvidia-smi"):
        return ()
    asked = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    found = sorted(float(each) for each in asked.stdout.split())
    # Only the driver resolves every form of a GPU's name, so they are counted, not selected.
    return tuple(found if visible is None else found[: len(visible.split(","))])
