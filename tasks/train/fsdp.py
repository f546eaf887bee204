"""Divides a network among the workers, by PyTorch's fully sharded data parallel.

Zhao et al., PyTorch FSDP (2023). It is imported only for `scale.strategy: fsdp`.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from models.network import Network

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def shard(network: Network, device: torch.device, precision: str) -> None:
    """Divides a network.

    Each worker keeps a part of every weight, of its gradient and of the optimizer's state, and has
    the whole of a layer only while it calculates with it. Matrix products are calculated and
    weights exchanged in the precision of the training, gradients in float32. Weights beside those
    of a batch norm stay in float32: PyTorch's do not take others.

    Args:
        network: On the CPU, with the same weights on each worker.
        device: The device of this worker; GPUs get their parts here.
        precision: The precision of the training.
    """
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if precision == "bf16" and not any(
        isinstance(module, BATCH_NORMS) for module in network.modules()
    ):
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for unit in (*network.layers(), network):
        fully_shard(unit, mesh=mesh, mp_policy=policy)


def state_dicts(
    network: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The whole states of a divided network and of its optimizer, on the CPU of the first worker.

    The other workers, which call it too, get nothing.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    network_state, optimizer_state = get_state_dict(network, optimizer, options=options)
    return network_state, dict(optimizer_state)


def load_state_dicts(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    network_state: dict[str, Any],
    optimizer_state: dict[str, Any],
) -> None:
    """Puts back what `state_dicts` gave to the first worker, and each worker has now."""
    set_state_dict(
        network,
        optimizer,
        model_state_dict=network_state,
        optim_state_dict=optimizer_state,
        options=StateDictOptions(full_state_dict=True),
    )
