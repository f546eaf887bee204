"""Makes the optimizer, sets its learning rate and clips gradients."""

from collections.abc import Sequence
from math import cos, pi
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import clip_grad_norm_, get_total_norm

from retrain.workload import Plateau, Train

if TYPE_CHECKING:
    from models.network import Network

# Of one_cycle, as in torch.optim.lr_scheduler.OneCycleLR.
START_DIVISOR = 25.0
END_DIVISOR = 25.0 * 1e4
# A loss is lower if it is by more than this part; as in ReduceLROnPlateau.
PLATEAU_THRESHOLD = 1e-4


def make_optimizer(network: "Network", hyperparameters: Train) -> torch.optim.Optimizer:
    """Makes the optimizer, without decay of biases and of norms' weights.

    Each group of parameters has `lr_scale`, by which the learning rate of a step is multiplied.
    """
    decay, lr = hyperparameters.weight_decay, hyperparameters.lr
    depths = network.depths() if hyperparameters.layer_decay < 1 else {}
    deepest = max(depths.values(), default=0)
    groups: dict[tuple[int, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((depths.get(name, 0), parameter.ndim <= 1), []).append(parameter)
    settings: list[dict[str, Any]] = [
        {
            "params": parameters,
            "weight_decay": 0.0 if is_bias_or_norm else decay,
            "lr_scale": hyperparameters.layer_decay ** (deepest - depth),
        }
        for (depth, is_bias_or_norm), parameters in sorted(groups.items(), key=itemgetter(0))
    ]
    if hyperparameters.optimizer == "sgd":
        momentum = hyperparameters.momentum
        # PyTorch has no fused step of SGD for the parts of a divided network.
        is_fused = not hasattr(network, "set_requires_gradient_sync")
        return torch.optim.SGD(settings, lr, momentum, nesterov=momentum > 0, fused=is_fused)
    kind = torch.optim.Adam if hyperparameters.optimizer == "adam" else torch.optim.AdamW
    return kind(settings, lr, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate of all groups of parameters, each by its scale."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


def learning_rate(
    step: int, steps: int, hyperparameters: Train, losses: Sequence[float] = ()
) -> float:
    """The learning rate of a step; it depends on these values alone, so no checkpoint needs it.

    Args:
        step: From 0.
        steps: Steps of the whole training.
        hyperparameters: The peak, the warm-up and the schedule.
        losses: The validation loss of each epoch so far, for the schedule `plateau`.
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
    if hyperparameters.schedule == "constant":
        return hyperparameters.lr
    if hyperparameters.schedule == "plateau":
        plateau = hyperparameters.plateau
        return hyperparameters.lr * plateau.factor ** _plateaus(losses, plateau)
    return _anneal(hyperparameters.lr, 0.0, (step - warmup) / (steps - warmup))


def _plateaus(losses: Sequence[float], plateau: Plateau) -> int:
    """Counts how often the losses have stopped falling."""
    best, waited, plateaus = float("inf"), 0, 0
    for loss in losses:
        if loss < best * (1 - PLATEAU_THRESHOLD):
            best, waited = loss, 0
        else:
            waited += 1
        if waited > plateau.patience:
            plateaus, waited = plateaus + 1, 0
    return plateaus


def clip_gradients(module: torch.nn.Module, largest: float) -> torch.Tensor:
    """Scales the gradients down if their norm, over all parameters, is too large.

    Args:
        module: A network whose parameters have gradients.
        largest: The largest norm allowed; 0 for no limit.

    Returns:
        The norm before the scaling.
    """
    if largest:
        norm = clip_grad_norm_(module.parameters(), largest)
    else:
        norm = get_total_norm(
            [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        )
    # Of a network that is divided among workers, each has a part of the norm.
    total: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return total


def _anneal(start: float, end: float, fraction: float) -> float:
    """Half a cosine wave from one value to another."""
    return end + (start - end) * (1 + cos(pi * fraction)) / 2
