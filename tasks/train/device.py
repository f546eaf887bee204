"""How a network is calculated on the device of its training."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from retrain.hardware import find_compiler
from retrain.workload import Train

if TYPE_CHECKING:
    import torch

# FLOPs from which a training on a GPU is compiled: minutes on a fast GPU, while compiling takes
# about one. On a CPU, compiling took 25 to 65 s to gain 10 % and needs a C++ compiler.
WORTH_COMPILING = 1e17


def make_repeatable(device: "torch.device") -> None:
    """Makes a repeated training give bitwise equal results."""
    import torch

    if device.type == "cuda":
        torch.cuda.set_device(device)  # on which workers exchange what is on none
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def set_threads(device: "torch.device", threads: int | None) -> int | None:
    """Sets the CPU threads of a training.

    Args:
        device: Where it runs.
        threads: How many; None if GPUs were expected.

    Returns:
        How many there are; None on a GPU.
    """
    import torch

    if device.type != "cpu":
        return None
    torch.set_num_threads(threads or 1)
    return torch.get_num_threads()


def flops(network: "torch.nn.Module", shape: tuple[int, ...]) -> float:
    """FLOPs of a forward pass over one image; works for a pretrained network too."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    network.eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(torch.zeros((1, *shape), dtype=torch.uint8))
    return float(counter.get_total_flops())


def is_compiled(hyperparameters: Train, device: "torch.device", flops: float) -> bool:
    """Whether the network is compiled.

    Args:
        hyperparameters: `compile` may decide it.
        device: The device of the training.
        flops: FLOPs of this worker's whole training.
    """
    if hyperparameters.compile == "auto":
        worth = device.type == "cuda" and flops >= WORTH_COMPILING
        return worth and find_compiler(on_gpu=True) is not None
    return hyperparameters.compile


def autocast(device: "torch.device", hyperparameters: Train) -> AbstractContextManager[Any]:
    """Computes matrix products in the precision of the training; can be entered many times."""
    import torch

    assert hyperparameters.precision != "auto", "retrain.params decides it"
    if hyperparameters.precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def generator(device: "torch.device") -> "torch.Generator":
    """The generator of dropout. `torch.manual_seed` would seed every kind of device, slowly."""
    import torch

    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    return torch.default_generator
