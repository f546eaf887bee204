"""Sets up the device of a training: repeatable results, threads and precision."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch


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
