"""What a training does with its network, beside calculating: from the device to checkpoints.

A network is divided among the workers, or has its weights averaged; workers exchange values. A
checkpoint has two files: the `weights` of the network as it was evaluated, and the
`state` from which the training goes on. The name of each has the digest of its content.
"""

import os
import shutil
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed
from ray.train import Checkpoint
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from models.network import Network
from retrain.disk import sha256_of

WEIGHTS, STATE = "weights", "state"  # of a checkpoint
DIGITS = 16  # of a digest
NOT_REPEATABLE = "does not have a deterministic implementation"  # says PyTorch of an operation
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def update_average(average: nn.Module, network: nn.Module, decay: float, updates: int) -> None:
    """Takes the weights after a step into their average, without waiting for a GPU.

    The first update copies the weights. The statistics of batch norms are always the
    network's own.

    Args:
        average: A network of the same kind, which is changed in place.
        network: The network after a step.
        decay: The part of the average that stays. It is less in the first updates,
            (1 + n) / (10 + n) after n of them, as in TensorFlow's `ExponentialMovingAverage`.
        updates: The number of updates before this one.
    """
    weight = min(decay, (1 + updates) / (10 + updates)) if updates else 0.0
    take = get_ema_multi_avg_fn(weight)  # type: ignore[no-untyped-call]
    take(tuple(average.parameters()), tuple(network.parameters()), updates)
    for averaged, current in zip(average.buffers(), network.buffers(), strict=True):
        averaged.copy_(current)


def divide(network: Network, device: torch.device, precision: str) -> None:
    """Divides a network among the workers: fully sharded data parallel (Zhao et al., 2023).

    Each worker keeps a part of every weight, of its gradient and of the optimizer's state, and has
    the whole of a layer only while it calculates with it. Matrix products are calculated and
    weights exchanged in the precision of the training, gradients in float32. Weights beside those
    of a batch norm stay in float32: PyTorch's do not take others.

    Args:
        network: On the CPU, with the same weights on each worker.
        device: The device of this worker; GPUs get their parts here.
        precision: The precision of the training.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if precision == "bf16" and not any(
        isinstance(module, BATCH_NORMS) for module in network.modules()
    ):
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for unit in (*network.layers(), network):
        fully_shard(unit, mesh=mesh, mp_policy=policy)


def exchange_gradients(network: Any, is_last: bool) -> None:
    """Has the workers of a divided network exchange gradients after the last part of a batch."""
    if _is_divided(network):
        network.set_requires_gradient_sync(is_last)


def weights_of(network: nn.Module) -> dict[str, Any]:
    """The state of a network; of a divided one, only the first worker has it, on the CPU."""
    if not _is_divided(network):
        return network.state_dict()
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    return get_model_state_dict(network, options=_whole())


def state_of_optimizer(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimizer; of a divided network's, only the first worker has it."""
    if not _is_divided(network):
        return optimizer.state_dict()
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    return get_optimizer_state_dict(network, optimizer, options=_whole())


def restore(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    weights: dict[str, Any],
    state: dict[str, Any],
) -> None:
    """Puts back what `weights_of` and `state_of_optimizer` gave, which each worker has."""
    if not _is_divided(network):
        network.load_state_dict(weights)
        optimizer.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    set_state_dict(
        network,
        optimizer,
        model_state_dict=weights,
        optim_state_dict=state,
        options=StateDictOptions(full_state_dict=True),
    )


def _whole() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(full_state_dict=True, cpu_offload=True)


def _is_divided(network: nn.Module) -> bool:
    return hasattr(network, "set_requires_gradient_sync")  # as PyTorch's FSDPModule has


def make_repeatable(device: torch.device, strictly: bool) -> None:
    """Makes a repeated training give bitwise equal results.

    Args:
        device: The device of the training.
        strictly: Refuse operations that have no repeatable implementation, with `NOT_REPEATABLE`.
            Without it there is a warning, and attention is not repeatable either.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)  # on which workers exchange what is on none
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=not strictly)
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


def generator(device: torch.device) -> torch.Generator:
    """The generator of dropout. `torch.manual_seed` would seed every kind of device, slowly."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    return torch.default_generator


def sum_over_workers(value: Tensor) -> Tensor:
    """The sum of a value over all workers; that of each of several values."""
    return of_all_workers(value).sum(0)


def share_statistics(network: nn.Module) -> None:
    """Gives all workers the first one's statistics of batch norms, which are what is saved."""
    if torch.distributed.is_initialized():
        for statistic in network.buffers():
            torch.distributed.broadcast(statistic, 0)


def of_all_workers(value: Tensor) -> Tensor:
    """The values (workers, …) that all workers have of a tensor, in order of their ranks."""
    if not torch.distributed.is_initialized():
        return value[None]
    values = [torch.empty_like(value) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(values, value)
    return torch.stack(values)


def value_of_first(number: int) -> int:
    """The number that the first worker has; all workers then do the same."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return number  # without waiting for a GPU
    on_gpu = torch.distributed.get_backend() == "nccl"
    value = torch.tensor(number, device="cuda" if on_gpu else "cpu")
    torch.distributed.broadcast(value, 0)
    return int(value)


def write_checkpoint(folder: Path, weights: dict[str, Any], state: dict[str, Any]) -> Checkpoint:
    """Writes a checkpoint, in place of one that was not reported any more.

    Args:
        folder: Gets it.
        weights: The tensors of the network.
        state: Tensors and plain values.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in ((WEIGHTS, weights), (STATE, state)):
        path = folder / name
        torch.save(content, path)
        path.rename(folder / f"{name}-{sha256_of(path)[:DIGITS]}.pt")
    return Checkpoint.from_directory(folder)


def read_checkpoint(folder: Path, name: str, *, mapped: bool = False) -> dict[str, Any]:
    """Reads a file of a checkpoint.

    Args:
        folder: The checkpoint's.
        name: `WEIGHTS` or `STATE`.
        mapped: Read a tensor only when it is used, as each worker of a divided network takes a part
            of each.
    """
    [path] = folder.glob(f"{name}-*.pt")
    content: dict[str, Any] = torch.load(path, "cpu", weights_only=True, mmap=mapped)
    return content


def is_undamaged(folder: Path) -> bool:
    """Whether both files are there, with the content that their names say."""
    files = [*folder.glob("*.pt")]
    return len(files) == 2 and all(path.stem.endswith(sha256_of(path)[:DIGITS]) for path in files)


def undamaged(newest: Checkpoint | None) -> Path | None:
    """The folder of a reported checkpoint, or of the newest undamaged one before it, if any."""
    if newest is None:
        return None
    last = Path(newest.path)
    folders = [folder for folder in last.parent.iterdir() if folder <= last]
    return next((folder for folder in sorted(folders, reverse=True) if is_undamaged(folder)), None)
