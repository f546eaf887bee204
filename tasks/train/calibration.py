"""Finds the temperature of a trained network: how far its logits are to be scaled down."""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from models.network import Network, inference
from tasks.data.shards import Prepared
from tasks.train.datasets import SplitDataset, in_order
from tasks.train.job import TrainingJob

# What is found outside is not a matter of calibration: of a handful of images, say.
LOWEST, HIGHEST = 0.2, 20.0
DIGITS = 3  # so that other sums of a matrix product do not change the network's files


def save(job: TrainingJob, network: Network, data: Prepared) -> None:
    """Writes a trained network to the output of the training, with its temperature.

    Args:
        job: The training.
        network: The network with the weights of the best epoch.
        data: The images that it was trained on.
    """
    settings, found = job.hyperparameters, 1.0
    if settings.calibrate:
        val = SplitDataset(job.images, "val")
        found = temperature(network, val, _at_once(job), settings.precision)
    job.save(network, data, found)


def accuracy(job: TrainingJob, network: Network, split: SplitDataset) -> float:
    """The share of a split's images that a trained network has right."""
    logits = _logits(network, split, _at_once(job), job.hyperparameters.precision)
    return float((logits.argmax(axis=1) == split.labels).mean())


def _at_once(job: TrainingJob) -> int:
    """The images of a forward pass."""
    return job.hyperparameters.micro_batch or job.batch_size // max(job.scale.workers, 1)


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
    logits = _logits(network, split, batch_size, precision)
    halves = [(logits[half::2], split.labels[half::2]) for half in (0, 1)]
    found = [_best(*half) for half in halves]
    gained = sum(
        _loss(1.0, *half) - _loss(other, *half)
        for half, other in zip(halves, reversed(found), strict=True)
    )
    return round(_best(logits, split.labels), DIGITS) if gained > 0 else 1.0


def _logits(
    network: Network, split: SplitDataset, batch_size: int, precision: str
) -> NDArray[np.float64]:
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
