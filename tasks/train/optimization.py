"""Calculates the loss, clips gradients, makes the optimizer and sets its learning rate."""

from collections.abc import Callable, Sequence
from functools import partial
from math import cos, pi
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from retrain.workload import Plateau, Train
from tasks.train.augment import Targets
from tasks.train.datasets import BatchSampler, SplitDataset, class_weights, in_order
from tasks.train.network import sum_over_workers

if TYPE_CHECKING:
    from models.network import Network

Loss = Callable[[Tensor, Tensor], Tensor]

# Of one_cycle, as in torch.optim.lr_scheduler.OneCycleLR.
START_DIVISOR = 25.0
END_DIVISOR = 25.0 * 1e4
# A loss is lower if it is by more than this part; as in ReduceLROnPlateau.
PLATEAU_THRESHOLD = 1e-4


def loss_function(
    hyperparameters: Train, labels: NDArray[np.int64], classes: int, device: torch.device
) -> Loss:
    """The mean cross-entropy of a batch; with weights for the classes, if configured.

    Args:
        hyperparameters: The weights and the label smoothing.
        labels: int64 (rows,), of the training split.
        classes: The number of classes.
        device: The device on which the loss is computed.
    """
    smoothing = hyperparameters.label_smoothing
    if hyperparameters.balance != "loss":
        return partial(torch.nn.functional.cross_entropy, label_smoothing=smoothing)
    weights = torch.tensor(class_weights(labels, classes), dtype=torch.float32, device=device)
    summed = torch.nn.CrossEntropyLoss(weights, reduction="sum", label_smoothing=smoothing)
    # PyTorch's own mean divides by the weights of the batch, or of a part of it.
    return lambda logits, labels: summed(logits, labels) / len(labels)


def mean_loss(loss_of: Loss, logits: Tensor, targets: Targets) -> Tensor:
    """The loss of images that may be mixed.

    Args:
        loss_of: The mean loss of logits (n, classes) and int64 labels (n,).
        logits: float32 (n, classes).
        targets: What the images show: labels, and the share of each image that they are for.

    Returns:
        A scalar.
    """
    (labels, share), *rest = targets
    loss = share * loss_of(logits, labels)
    for labels, share in rest:
        loss = loss + share * loss_of(logits, labels)
    return loss


def validate(
    network: torch.nn.Module,
    split: SplitDataset,
    batches: BatchSampler,
    at_once: int,
    device: torch.device,
) -> dict[str, float]:
    """Evaluates a network.

    Args:
        network: Put into evaluation mode here.
        split: The split to evaluate it on.
        batches: The sampler, which knows the rank of this worker.
        at_once: The number of images that go through the network together.
        device: The network's device.

    Returns:
        `val_loss`, the mean cross-entropy (nats, without label smoothing); `val_accuracy`; and
        `val_macro_recall`, the mean over the classes of the split.
    """
    share = -(-len(split) // batches.workers)
    rows = range(len(split))[batches.rank * share :][:share]
    loss_sum = torch.zeros((), device=device)
    counts = torch.from_numpy(np.bincount(split.labels)).to(device)
    hits = torch.zeros_like(counts)
    network.eval()
    with torch.inference_mode():
        for images, labels in in_order(split, rows, at_once, device):
            logits = network(images)
            loss_sum += torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            hits += torch.bincount(labels[logits.argmax(1) == labels], minlength=len(counts))
        # A network that is divided among workers is called by all of them as often.
        for _ in range(-(-share // at_once) - -(-len(rows) // at_once)):
            network(torch.zeros((1, *split.images.shape), dtype=torch.uint8, device=device))
    loss_sum, hits = sum_over_workers(loss_sum), sum_over_workers(hits)
    return {
        "val_loss": float(loss_sum / len(split)),
        "val_accuracy": int(hits.sum()) / len(split),
        "val_macro_recall": float((hits / counts)[counts > 0].mean()),
    }


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
