"""Which number format pays: bfloat16 where the processor calculates in it, if the work is large."""

import os
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

Precision = Literal["fp32", "bf16"]

# FLOPs of a forward pass over a batch from which it counts as large. Below, a step is mostly the
# calls of its many small kernels: bfloat16 only adds conversions, and threads wait for each other.
LARGE = 1e9

BF16_INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16"})
BF16_CAPABILITY = 8.0  # of an NVIDIA GPU: Ampere and later


def precision(flops: float) -> Precision:
    """Decides the precision of a network's matrix products on this machine.

    A rule and no measurement, because it is part of the key of what is trained: a busy moment must
    not train another model. With eager attention, two cores with AVX512_BF16 trained 2.6 to 3 times
    as many images/s in bf16 (ViT 128 x 4, 192 x 6 and 384 x 12, batches of 64 to 32), and 0.9 times
    as many at 64 x 2, which this rule leaves in fp32.

    Args:
        flops: Of a forward pass over a batch.
    """
    return "bf16" if flops >= LARGE and has_bf16() else "fp32"


@cache
def has_bf16() -> bool:
    """Whether this machine has a processor for networks that calculates in bfloat16.

    It is the GPU if there is one that PyTorch can use, else the CPU. Nothing is imported to find
    out.
    """
    gpus = gpu_capabilities()
    if gpus:
        return min(gpus) >= BF16_CAPABILITY
    try:
        cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except FileNotFoundError:  # no Linux
        return False
    return not BF16_INSTRUCTIONS.isdisjoint(cpu.split())


def gpu_capabilities() -> list[float]:
    """The compute capability of each NVIDIA GPU that PyTorch can use here; none is imported."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible in ("", "-1")
    if hidden or version("torch").endswith("+cpu") or not shutil.which("nvidia-smi"):
        return []
    asked = subprocess.run(
        ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    found = [float(each) for each in asked.stdout.split()]
    if visible is None:
        return found
    # Some may be named in ways that only the driver resolves, so it is counted and not chosen.
    return sorted(found)[: len(visible.split(","))]
