"""Evaluates a network on the validation split, each worker on its part."""

import torch
from torch import Tensor

from tasks.data.shards import PreparedSplit
from tasks.train.collective import sum_over_workers
from tasks.train.ingest import in_order
from tasks.train.sampler import BatchSampler


def validate(
    network: torch.nn.Module,
    split: PreparedSplit,
    batches: BatchSampler,
    at_once: int,
    device: torch.device,
) -> tuple[Tensor, float]:
    """Evaluates a network.

    Args:
        network: Put into evaluation mode here.
        split: What to evaluate it on.
        batches: Which worker this is.
        at_once: How many images go through the network together.
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
