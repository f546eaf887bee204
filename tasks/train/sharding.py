"""Divides a network among the workers: fully sharded data parallel (Zhao et al., 2023), by PyTorch.

Each worker keeps a part of every weight, of its gradient and of the optimizer's state, and has the
whole of a layer only while it calculates with it. The functions here are called by all workers at
the same time.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from models.network import Network


def shard(network: "Network", workers: int, device: "torch.device") -> None:
    """Leaves each worker its part of the network's weights.

    Args:
        network: Equal on all workers, on their devices.
        workers: How many there are.
        device: Of this worker.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (workers,))
    for layer in network.layers():
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)


def whole_weights(network: "Network") -> dict[str, Any]:
    """The network's state, on the CPU; the first worker gets all of it, the others nothing."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(
        network, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )


def whole_optimizer(network: "Network", optimizer: "torch.optim.Optimizer") -> dict[str, Any]:
    """The optimizer's state by the names of the weights, to whom `whole_weights` gives its own."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    return get_optimizer_state_dict(
        network, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )


def restore(
    network: "Network",
    optimizer: "torch.optim.Optimizer",
    weights: Mapping[str, Any],
    state: Mapping[str, Any],
) -> None:
    """Puts whole states into a divided network and its optimizer.

    Args:
        network: As `shard` left it.
        optimizer: Of its weights.
        weights: As `whole_weights` gave them to the first worker; each worker has them.
        state: As `whole_optimizer` gave it to the first worker; each worker has it.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    set_state_dict(
        network,
        optimizer,
        model_state_dict=dict(weights),
        optim_state_dict=dict(state),
        options=StateDictOptions(full_state_dict=True),
    )
