"""Keeps an exponential moving average of a network's weights."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def update_average(average: "nn.Module", network: "nn.Module", decay: float, updates: int) -> None:
    """Takes the weights after a step into their average, without waiting for a GPU.

    The first time the average becomes the weights. The statistics of batch norms are always the
    network's own.

    Args:
        average: Another network like it; changed in place.
        network: After a step.
        decay: The part of the average that stays. It is less in the first updates,
            (1 + n) / (10 + n) after n of them, as in TensorFlow's `ExponentialMovingAverage`.
        updates: How many there were before this one.
    """
    import torch

    kept = min(decay, (1 + updates) / (10 + updates)) if updates else 0.0
    with torch.no_grad():
        averages, weights = tuple(average.parameters()), tuple(network.parameters())
        torch._foreach_lerp_(averages, weights, 1 - kept)
        for averaged, current in zip(average.buffers(), network.buffers(), strict=True):
            averaged.copy_(current)
