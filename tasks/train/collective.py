"""Exchanges values between the workers of a training; does nothing if there is only one worker."""

import torch.distributed
from torch import Tensor, nn


def sum_over_workers(value: Tensor) -> Tensor:
    """The sum of a value over all workers."""
    return of_all_workers(value).sum()


def share_statistics(network: nn.Module) -> None:
    """Gives all workers the first one's statistics of batch norms, which are what is saved."""
    if torch.distributed.is_initialized():
        for statistic in network.buffers():
            torch.distributed.broadcast(statistic, 0)


def of_all_workers(value: Tensor) -> Tensor:
    """The values (workers,) that all workers have of a scalar, in order of their ranks."""
    if not torch.distributed.is_initialized():
        return value[None]
    values = [torch.empty_like(value) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(values, value)
    return torch.stack(values)


def value_of_first(number: int) -> int:
    """The number that the first worker has; all workers then do the same."""
    if not torch.distributed.is_initialized():
        return number
    on_gpu = torch.distributed.get_backend() == "nccl"
    value = torch.tensor(number, device="cuda" if on_gpu else "cpu")
    torch.distributed.broadcast(value, 0)
    return int(value)
