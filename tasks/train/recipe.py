"""The recipe of a training: its loss, optimizer and learning rate; evaluation and temperature."""

from collections.abc import Callable, Sequence
from functools import partial
from math import cos, pi
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import get_ema_multi_avg_fn

from models.network import Network, inference
from retrain.workload import Plateau, Train
from tasks.train.augmentation import Targets
from tasks.train.data_loading import BatchSampler, SplitDataset, class_weights, in_order
from tasks.train.distributed import is_sharded, sum_over_workers

Loss = Callable[[Tensor, Tensor], Tensor]

# Of one_cycle, as in torch.optim.lr_scheduler.OneCycleLR.
START_DIVISOR = 25.0
END_DIVISOR = 25.0 * 1e4
# A loss is lower if it is by more than this part; as in ReduceLROnPlateau.
PLATEAU_THRESHOLD = 1e-4

# Of a temperature; what is found outside is a matter of a handful of images, say.
LOWEST, HIGHEST = 0.2, 20.0
DIGITS = 3  # so that other sums of a matrix product do not change the network's files


def loss_function(
    hyperparameters: Train, labels: NDArray[np.int64], classes: int, device: torch.device
) -> Loss:
    """The mean cross-entropy of a batch; with weights for the classes, if configured.

    The weight of an image's class is that of its whole loss. PyTorch's own weights weigh the part
    that label smoothing adds by those of all classes: from 19 images to 1 (two classes, smoothing
    0.1), the best answer for a sure image of the frequent class would be the rare one.

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
    each = torch.nn.CrossEntropyLoss(reduction="none", label_smoothing=smoothing)
    return lambda logits, labels: (weights[labels] * each(logits, labels)).mean()


def mean_loss(loss_of: Loss, logits: Tensor, targets: Targets) -> Tensor:
    """The loss of images that may be mixed.

    Args:
        loss_of: The mean loss of logits (n, classes) and int64 labels (n,).
        logits: float32 (n, classes).
        targets: What the images show: labels, and the share of each image that they are for.

    Returns:
        A scalar.
    """
    first, *others = (share * loss_of(logits, labels) for labels, share in targets)
    return sum(others, start=first)


def make_optimizer(network: Network, hyperparameters: Train) -> torch.optim.Optimizer:
    """Makes the optimizer, without decay of biases and of norms' weights."""
    decay, lr = hyperparameters.weight_decay, hyperparameters.lr
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    weights = [parameter for parameter in trained if parameter.ndim > 1]
    biases_and_norms = [parameter for parameter in trained if parameter.ndim <= 1]
    settings: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": group_decay}
        for parameters, group_decay in ((weights, decay), (biases_and_norms, 0.0))
        if parameters
    ]
    if hyperparameters.optimizer == "sgd":
        momentum = hyperparameters.momentum
        # PyTorch has no fused step of SGD for the parts of a divided network.
        is_fused = not is_sharded(network)
        return torch.optim.SGD(settings, lr, momentum, nesterov=momentum > 0, fused=is_fused)
    kind = torch.optim.Adam if hyperparameters.optimizer == "adam" else torch.optim.AdamW
    return kind(settings, lr, fused=True)


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


def _anneal(start: float, end: float, fraction: float) -> float:
    """Half a cosine wave from one value to another."""
    return end + (start - end) * (1 + cos(pi * fraction)) / 2


def clip_gradients(module: torch.nn.Module, largest: float) -> torch.Tensor:
    """Scales the gradients down if their norm, over all parameters, is too large.

    Args:
        module: A network whose parameters have gradients.
        largest: The largest norm allowed; 0 for no limit.

    Returns:
        The norm before the scaling.
    """
    norm = clip_grad_norm_(module.parameters(), largest or float("inf"))
    # Of a network that is divided among workers, each has a part of the norm.
    total: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return total


def update_average(
    average: torch.nn.Module, network: torch.nn.Module, decay: float, updates: int
) -> None:
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


def evaluate(
    network: torch.nn.Module,
    split: SplitDataset,
    sampler: BatchSampler,
    micro_batch: int,
    device: torch.device,
) -> dict[str, float]:
    """Evaluates a network; all workers share the images.

    Args:
        network: Put into evaluation mode here.
        split: The split to evaluate it on.
        sampler: The sampler, which knows the rank of this worker.
        micro_batch: The number of images that go through the network together.
        device: The network's device.

    Returns:
        `val_loss`, the mean cross-entropy (nats, without label smoothing); `val_accuracy`; and
        `val_macro_recall`, the mean over the classes of the split.
    """
    share = -(-len(split) // sampler.workers)
    rows = range(len(split))[sampler.rank * share :][:share]
    loss_sum = torch.zeros((), device=device)
    counts = torch.from_numpy(np.bincount(split.labels)).to(device)
    hits = torch.zeros_like(counts)
    network.eval()
    with torch.inference_mode():
        for images, labels in in_order(split, rows, micro_batch, device):
            logits = network(images)
            loss_sum += torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            hits += torch.bincount(labels[logits.argmax(1) == labels], minlength=len(counts))
        # A sharded network is called by all workers as often.
        for _ in range(-(-share // micro_batch) - -(-len(rows) // micro_batch)):
            network(torch.zeros((1, *split.images.shape), dtype=torch.uint8, device=device))
    loss_sum = sum_over_workers(loss_sum)
    hits = sum_over_workers(hits)
    return {
        "val_loss": float(loss_sum / len(split)),
        "val_accuracy": int(hits.sum()) / len(split),
        "val_macro_recall": float((hits / counts)[counts > 0].mean()),
    }


def temperature(network: Network, split: SplitDataset, batch_size: int, precision: str) -> float:
    """The temperature with which the probabilities of a split have the lowest log loss.

    Source: Guo et al., On Calibration of Modern Neural Networks (2017), section 4.2. It is taken
    where it is worth it: a temperature that was found on either half of the rows has to lower the
    loss of the other half.

    Args:
        network: A trained network; put into evaluation mode here.
        split: The validation split.
        batch_size: Images per forward pass.
        precision: `fp32` or `bf16`, of the matrix products.

    Returns:
        What the logits are divided by; 1 if nothing is gained.
    """
    logits = logits_of(network, split, batch_size, precision)
    halves = [(logits[half::2], split.labels[half::2]) for half in (0, 1)]
    found = [_best(*half) for half in halves]
    gained = sum(
        _loss(1.0, *half) - _loss(other, *half)
        for half, other in zip(halves, reversed(found), strict=True)
    )
    return round(_best(logits, split.labels), DIGITS) if gained > 0 else 1.0


def logits_of(
    network: Network, split: SplitDataset, batch_size: int, precision: str
) -> NDArray[np.float64]:
    """The logits of a split, float64 (rows, classes); the arguments are those of `temperature`."""
    device = network.mean.device
    network.eval()
    with inference(device, precision):
        batches = in_order(split, range(len(split)), batch_size, device)
        logits = torch.cat([network(images).float().cpu() for images, _ in batches])
    return logits.numpy().astype(np.float64)


def _best(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The temperature with the lowest loss, which has one minimum."""
    found = minimize_scalar(
        lambda exponent: _loss(np.exp(exponent), logits, labels),
        bounds=(np.log(LOWEST), np.log(HIGHEST)),
        method="bounded",
    )
    return float(np.exp(found.x))


def _loss(temperature: float, logits: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The sum of the log losses, in nats, of the logits (rows, classes) of some images."""
    log_probabilities = log_softmax(logits / temperature, axis=1)
    return -float(log_probabilities[np.arange(len(labels)), labels].sum())
