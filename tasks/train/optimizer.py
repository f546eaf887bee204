"""Makes the optimizer, sets its learning rate and clips gradients."""

from math import cos, pi
from typing import TYPE_CHECKING, Any

from retrain.workload import Train

if TYPE_CHECKING:
    import torch

# Of one_cycle, as in torch.optim.lr_scheduler.OneCycleLR.
START_DIVISOR = 25.0
END_DIVISOR = 25.0 * 1e4


def make_optimizer(module: "torch.nn.Module", hyperparameters: Train) -> "torch.optim.AdamW":
    """AdamW (Loshchilov and Hutter, 2019), without decay of biases and of norms' weights."""
    import torch

    parameters = [each for each in module.parameters() if each.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [each for each in parameters if each.ndim > 1]},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=hyperparameters.lr, weight_decay=hyperparameters.weight_decay, fused=True
    )


def learning_rate(step: int, steps: int, hyperparameters: Train) -> float:
    """The learning rate of a step; it depends on the step alone, so no checkpoint needs it.

    Args:
        step: From 0.
        steps: Steps of the whole training.
        hyperparameters: The peak, the warm-up and the schedule.
    """
    warmup = hyperparameters.warmup * steps
    if hyperparameters.schedule == "one_cycle":
        # The peak is at a whole step and the end at the last one, as in PyTorch.
        rising = warmup - 1
        start, end = hyperparameters.lr / START_DIVISOR, hyperparameters.lr / END_DIVISOR
        if step < rising:
            return _anneal(start, hyperparameters.lr, step / rising)
        return _anneal(hyperparameters.lr, end, (step - rising) / (steps - 1 - rising))
    if step < warmup:
        return hyperparameters.lr * (step + 1) / (warmup + 1)
    return _anneal(hyperparameters.lr, 0.0, (step - warmup) / (steps - warmup))


def clip_gradients(module: "torch.nn.Module", largest: float) -> "torch.Tensor":
    """Scales the gradients down if their norm, over all parameters, is too large.

    Args:
        module: Its parameters have gradients.
        largest: The largest norm allowed; 0 for no limit.

    Returns:
        The norm before the scaling.
    """
    from torch.nn.utils import clip_grad_norm_, get_total_norm

    if largest:
        return clip_grad_norm_(module.parameters(), largest)
    return get_total_norm([each.grad for each in module.parameters() if each.grad is not None])


def _anneal(start: float, end: float, fraction: float) -> float:
    """Half a cosine wave from one value to another."""
    return end + (start - end) * (1 + cos(pi * fraction)) / 2
