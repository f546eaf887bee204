"""The loss of a batch, and what makes up for classes that have few images."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from retrain.workload import Train

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    Loss = Callable[[Tensor, Tensor], Tensor]


def loss_function(
    hyperparameters: Train, labels: "NDArray[np.int64]", classes: int, device: "torch.device"
) -> "Loss":
    """The mean cross-entropy of a batch; with weights for the classes, if configured.

    Args:
        hyperparameters: The weights and the label smoothing.
        labels: int64 (rows,), of the training split.
        classes: How many there are.
        device: Where it is computed.
    """
    import torch

    smoothing = hyperparameters.label_smoothing
    if hyperparameters.balance != "loss":
        return partial(torch.nn.functional.cross_entropy, label_smoothing=smoothing)
    weights = torch.tensor(class_weights(labels, classes), dtype=torch.float32, device=device)
    summed = torch.nn.CrossEntropyLoss(weights, reduction="sum", label_smoothing=smoothing)
    # PyTorch's own mean divides by the weights of the batch, or of a part of it.
    return lambda logits, labels: summed(logits, labels) / len(labels)


def mean_loss(
    loss_of: "Loss", logits: "Tensor", targets: "Sequence[tuple[Tensor, float]]"
) -> "Tensor":
    """The loss of images that may be mixed.

    Args:
        loss_of: The mean loss of logits (n, classes) and int64 labels (n,).
        logits: float32 (n, classes).
        targets: What the images show: labels, and the share of each image that they are for.

    Returns:
        A scalar.
    """
    (labels, share), *others = targets
    loss = share * loss_of(logits, labels)
    for labels, share in others:
        loss = loss + share * loss_of(logits, labels)
    return loss


def class_weights(labels: "NDArray[np.int64]", classes: int) -> "NDArray[np.float64]":
    """A weight for each class, larger for rarer ones; the mean over all images is 1.

    It is rows / (classes * images of the class), as scikit-learn's `balanced` (King and Zeng,
    2001).

    Args:
        labels: int64 (rows,), class indices; each class has at least one image.
        classes: How many classes there are.

    Returns:
        float64 (classes,).
    """
    import numpy as np

    return len(labels) / (classes * np.bincount(labels, minlength=classes))
