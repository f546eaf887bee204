"""Sets up the device of a training: repeatable results, threads, compilation and precision."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

from retrain.hardware import find_compiler

if TYPE_CHECKING:
    from tasks.train.job import TrainingJob

# FLOPs from which a training on a GPU is compiled: minutes on a fast GPU, while compiling takes
# about one. On a CPU, compiling took 25 to 65 s to gain 10 % and needs a C++ compiler.
WORTH_COMPILING = 1e17


def make_repeatable(device: torch.device) -> None:
    """Makes a repeated training give bitwise equal results."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # on which workers exchange what is on none
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def set_threads(device: torch.device, threads: Literal["auto"] | int | None) -> int | None:
    """Sets the CPU threads of a training.

    Args:
        device: The device of the training.
        threads: The number of threads; None if GPUs were expected.

    Returns:
        The number of threads; None on a GPU.
    """
    assert threads != "auto", "retrain.params decides it"
    if device.type != "cpu":
        return None
    torch.set_num_threads(threads or 1)
    return torch.get_num_threads()


def is_compiled(
    job: "TrainingJob",
    device: torch.device,
    network: torch.nn.Module,
    shape: tuple[int, ...],
    images: int,
) -> bool:
    """Whether the network is compiled: as configured, or where the training is long enough.

    Args:
        job: The training.
        device: The device of this worker.
        network: The network, on the CPU.
        shape: The shape of an image.
        images: The number of images that this worker trains on, over all epochs.
    """
    configured = job.hyperparameters.compile
    if configured != "auto":
        return configured
    if device.type != "cuda":
        return False
    network.eval()
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(torch.zeros((1, *shape), dtype=torch.uint8))
    worth = 3 * counter.get_total_flops() * images >= WORTH_COMPILING
    return worth and find_compiler(on_gpu=True) is not None


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Computes matrix products in the precision of the training; can be entered many times."""
    assert precision != "auto", "retrain.params decides it"
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def generator(device: torch.device) -> torch.Generator:
    """The generator of dropout. `torch.manual_seed` would seed every kind of device, slowly."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    return torch.default_generator
