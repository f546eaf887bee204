"""Calculates the loss of a batch of training images, and of the validation split."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retrain.workload import Train
from tasks.train.augment import Targets
from tasks.train.collective import sum_over_workers
from tasks.train.datasets import SplitDataset, in_order
from tasks.train.sampler import BatchSampler, class_weights

Loss = Callable[[Tensor, Tensor], Tensor]


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
) -> tuple[Tensor, float]:
    """Evaluates a network.

    Args:
        network: Put into evaluation mode here.
        split: The split to evaluate it on.
        batches: The sampler, which knows the rank of this worker.
        at_once: The number of images that go through the network together.
        device: The network's device.

    Returns:
        The mean cross-entropy (nats, without label smoothing) and the accuracy.
    """
    share = -(-len(split) // batches.workers)
    rows = range(len(split))[batches.rank * share :][:share]
    loss_sum = torch.zeros((), device=device)
    hits = torch.zeros((), device=device)
    network.eval()
    with torch.inference_mode():
        for images, labels in in_order(split, rows, at_once, device):
            logits = network(images)
            loss_sum += torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            hits += (logits.argmax(1) == labels).sum()
        # A network that is divided among workers is called by all of them as often.
        for _ in range(-(-share // at_once) - -(-len(rows) // at_once)):
            network(torch.zeros((1, *split.images.shape), dtype=torch.uint8, device=device))
    loss_sum, hits = sum_over_workers(loss_sum), sum_over_workers(hits)
    return loss_sum / len(split), float(hits) / len(split)
