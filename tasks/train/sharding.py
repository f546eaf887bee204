"""Divides a network among the workers: fully sharded data parallel (Zhao et al., 2023), by PyTorch.

Each worker keeps a part of every weight, of its gradient and of the optimizer's state, and has the
whole of a layer only while it calculates with it. The functions here are called by all workers at
the same time.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import models

if TYPE_CHECKING:
    import torch
    from torch.distributed.fsdp import FSDPModule

    from models.network import Network
    from tasks.train.job import TrainingJob


def faults(family: str, settings: Mapping[str, Any], shape: tuple[int, ...]) -> Iterator[str]:
    """Finds that a network of the user's own cannot be divided.

    Args:
        family: Of the network.
        settings: The family's.
        shape: Height, width and channels of the images.
    """
    import torch

    if family != "custom":
        return
    try:
        network = models.build(family, settings, shape, classes=2)
    except ValueError:  # the family says it
        return
    own = {name for name, _ in network.named_parameters()}
    for name, _ in network.named_parameters(remove_duplicate=False):
        if name not in own:
            yield f"scale.strategy: fsdp cannot divide {name}, which has two names; use ddp."
    try:
        with torch.device("meta"):
            models.rebuild(family, network.description, network.files)
    except ValueError as error:
        yield f"scale.strategy: fsdp makes a network without memory first; use ddp. {error}"


def without_memory(job: "TrainingJob", whole: "Network | None") -> "Network":
    """The first worker's network on every worker, with tensors that have shapes but no memory.

    Args:
        job: The training.
        whole: The network, on the first worker; None on the others, which never have all of it.
    """
    import torch.distributed

    said: list[Any] = [None]
    if whole is not None:
        trained = [name for name, each in whole.named_parameters() if each.requires_grad]
        said = [(whole.description, whole.files, trained)]
    torch.distributed.broadcast_object_list(said, 0)
    description, files, trained = said[0]
    with torch.device("meta"):
        network = job.rebuild(description, files)
    for name, each in network.named_parameters():
        each.requires_grad_(name in trained)
    return network


def shard(
    network: "Network", whole: "Network | None", device: "torch.device", precision: str
) -> None:
    """Divides a network among the workers, and gives each its part of the weights.

    Its matrix products are calculated and its weights exchanged in the precision of the training,
    gradients in float32. Weights beside those of a batch norm stay in float32: PyTorch's do not
    take others.

    Args:
        network: As `without_memory` made it; gets the values of `whole`, on the device.
        whole: On the CPU of the first worker, which it leaves; None on the others.
        device: Of this worker.
        precision: Of the training.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor
    from torch.nn.modules.batchnorm import _BatchNorm

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if precision == "bf16" and not any(isinstance(each, _BatchNorm) for each in network.modules()):
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for unit in (*network.layers(), network):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    network.to_empty(device=device)
    values = {}
    if whole is not None:
        values = dict(_tensors(whole))
        whole.to("meta")
    with torch.no_grad():
        for name, own in _tensors(network):
            # One whole tensor at a time is on the device.
            value = values.pop(name, torch.empty(own.shape, dtype=own.dtype)).to(device)
            if isinstance(own, DTensor):
                own.copy_(distribute_tensor(value, mesh, own.placements))
            else:
                torch.distributed.broadcast(value, 0)
                own.copy_(value)


def _tensors(network: "Network") -> "Iterator[tuple[str, torch.Tensor]]":
    """All that has values in a network: also what is not saved with it."""
    yield from network.named_parameters()
    yield from network.named_buffers()


def exchange_gradients(network: "Network", now: bool) -> None:
    """Whether the workers exchange gradients in the next backward pass, or add to their own."""
    cast("FSDPModule", network).set_requires_gradient_sync(now)


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
