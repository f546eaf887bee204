"""Runs a network on the device of a worker, and exchanges values between workers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, cast

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from models.network import Network

NOT_REPEATABLE = "does not have a deterministic implementation"  # says PyTorch of an operation


def default_device() -> torch.device:
    """The device of a process without others: a GPU if there is one."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def repeatable(device: torch.device, *, strictly: bool) -> Iterator[None]:
    """Makes a training give bitwise equal results when it is repeated.

    Args:
        device: The device of the training.
        strictly: Refuse operations that have no repeatable implementation, with `NOT_REPEATABLE`.
            Without it there is a warning, and attention is not repeatable either.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)  # on which workers exchange what is on none
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=not strictly)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


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


def generator(device: torch.device) -> torch.Generator:
    """The generator of dropout. `torch.manual_seed` would seed every kind of device, slowly."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    return torch.default_generator


def wrap(network: Network, device: torch.device, *, compiled: bool) -> nn.Module:
    """The module that a training calls: the network, inside DDP if there are several workers.

    DDP looks for parameters that no gradient reaches, as a network of the user's may have. Else it
    would divide the gradients into other buckets after its first step, and a training that goes on
    would add up in another order: other bits, with three workers or more.

    Args:
        network: On the device; it exchanges gradients itself if it is sharded.
        device: The device of this worker.
        compiled: Whether `torch.compile` makes it faster.
    """
    module: nn.Module = network
    if _world_size() > 1 and not is_sharded(network):
        devices = [device] if device.type == "cuda" else None
        module = DistributedDataParallel(network, devices, find_unused_parameters=True)
    return cast("nn.Module", torch.compile(module)) if compiled else module


@contextmanager
def gradient_sync(module: nn.Module, network: Any, is_last: bool) -> Iterator[None]:
    """Has the workers exchange gradients once, with the last part of a batch.

    Args:
        module: The network as `wrap` gives it.
        network: The network in it.
        is_last: Whether the part is the last one.
    """
    if is_sharded(network):
        network.set_requires_gradient_sync(is_last)
    with nullcontext() if is_last else getattr(module, "no_sync", nullcontext)():
        yield


def is_sharded(network: nn.Module) -> bool:
    """Whether a network is divided among the workers (`fsdp.py`)."""
    return hasattr(network, "set_requires_gradient_sync")  # as PyTorch's FSDPModule has


def _world_size() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def sum_over_workers(value: Tensor) -> Tensor:
    """The sum of a value over all workers; that of each of several values."""
    return of_all_workers(value).sum(0)


def of_all_workers(value: Tensor) -> Tensor:
    """The values (workers, …) that all workers have of a tensor, in order of their ranks."""
    if not torch.distributed.is_initialized():
        return value[None]
    values = [torch.empty_like(value) for _ in range(_world_size())]
    torch.distributed.all_gather(values, value)
    return torch.stack(values)


def broadcast_batch_norms(network: nn.Module) -> None:
    """Gives all workers the first one's statistics of batch norms, which are what is saved."""
    if torch.distributed.is_initialized():
        for statistic in network.buffers():
            torch.distributed.broadcast(statistic, 0)


def value_of_first(number: int) -> int:
    """The number that the first worker has; all workers then do the same."""
    if _world_size() == 1:
        return number  # without waiting for a GPU
    on_gpu = torch.distributed.get_backend() == "nccl"
    value = torch.tensor(number, device="cuda" if on_gpu else "cpu")
    torch.distributed.broadcast(value, 0)
    return int(value)
