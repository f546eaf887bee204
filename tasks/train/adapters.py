"""Trains low-rank adapters beside a network's frozen weights: LoRA (Hu et al., 2021), by `peft`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrain.workload import Lora

if TYPE_CHECKING:
    from models.network import Network


def faults(network: "Network") -> Iterator[str]:
    """A sentence if a network has no layers that take adapters; its tensors need no values."""
    if not _adapted(network):
        yield "train.lora: the network has no linear layers to adapt; leave it out."


def add_adapters(network: "Network", lora: Lora) -> None:
    """Adds an adapter to each linear layer but the last layer's, which is trained itself.

    Raises:
        ValueError: The network has no such layers.
    """
    from peft import LoraConfig, get_peft_model

    for fault in faults(network):
        raise ValueError(fault)
    _, *last = (name for name, _ in network.classifier.named_children())
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha or 2 * lora.r,
        lora_dropout=lora.dropout,
        target_modules=_adapted(network),
        modules_to_save=last,
    )
    network.classifier = get_peft_model(network.classifier, config)


def _adapted(network: "Network") -> list[str]:
    """The names of the linear layers of the backbone."""
    import torch

    backbone = next(name for name, _ in network.classifier.named_children())
    return [
        name
        for name, module in network.classifier.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith(f"{backbone}.")
    ]


def merge_adapters(network: "Network") -> None:
    """Adds the adapters' products to the weights, so that the network is an ordinary one again."""
    network.classifier = network.classifier.merge_and_unload()  # type: ignore[operator]
