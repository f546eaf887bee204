"""What the workers of a training exchange beside gradients; nothing when there is only one."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def sum_over_workers(value: "Tensor") -> "Tensor":
    """The sum of a value over all workers."""
    import torch.distributed

    value = value.clone()
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
    return value


def share_statistics(network: "nn.Module") -> None:
    """Gives all workers the first one's statistics of batch norms, which are what is saved."""
    import torch.distributed

    if torch.distributed.is_initialized():
        for statistic in network.buffers():
            torch.distributed.broadcast(statistic, 0)


def broadcast_flag(flag: bool) -> bool:
    """What the first worker says; all workers then do the same."""
    import torch.distributed

    if not torch.distributed.is_initialized():
        return flag
    on_gpu = torch.distributed.get_backend() == "nccl"
    said = torch.tensor(int(flag), device="cuda" if on_gpu else "cpu")
    torch.distributed.broadcast(said, 0)
    return bool(said)


def wait_for_all() -> None:
    """Waits until all workers are here."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.barrier()
