"""Keeps an exponential moving average of a network's weights."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim.swa_utils import AveragedModel

    Tensors = tuple[Tensor, ...] | list[Tensor]


def averaged(network: "nn.Module", decay: float) -> "AveragedModel":
    """An average of a network's weights over its training, on the network's device.

    The statistics of batch norms are the network's own.

    Args:
        network: At the start of its training.
        decay: The part of the average that stays with each update. It is less in the first
            updates, (1 + n) / (10 + n) after n of them, as in TensorFlow's
            `ExponentialMovingAverage`.
    """
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    def update(averages: "Tensors", values: "Tensors", updates: "Tensor | int") -> None:
        count = int(updates)
        now = min(decay, (1 + count) / (10 + count))
        get_ema_multi_avg_fn(now)(averages, values, updates)  # type: ignore[no-untyped-call]

    return AveragedModel(network, multi_avg_fn=update)
