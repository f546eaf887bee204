"""A training function of a user's and its network, for `training_loops.py`."""

import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

import ray.train
import ray.train.torch
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Classifier(nn.Module):
    """A ViT of `transformers` that returns logits."""

    def __init__(self, num_classes: int, size: int, channels: int) -> None:
        super().__init__()
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            image_size=size, num_channels=channels, patch_size=4, hidden_size=192,
            num_hidden_layers=6, num_attention_heads=6, intermediate_size=768,
            num_labels=num_classes,
        )  # fmt: skip
        self.network = ViTForImageClassification(config)

    def forward(self, pixels: Tensor) -> Tensor:
        """Classifies float32 (N, C, H, W)."""
        logits: Tensor = self.network(pixels).logits
        return logits


def train(config: dict[str, Any]) -> None:
    """Trains, and reports each epoch with its speed."""
    torch.manual_seed(0)
    loader = DataLoader(config["train"], config["batch_size"], shuffle=True, drop_last=True)
    loader = ray.train.torch.prepare_data_loader(loader)
    size, _, channels = config["shape"]
    model = ray.train.torch.prepare_model(Classifier(len(config["classes"]), size, channels))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    ended = monotonic()
    for _ in range(config["epochs"]):
        count = 0
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += len(images)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), Path(folder, "model.pt"))
            metrics = {"loss": loss.item(), "speed": count / (monotonic() - ended)}
            ended = monotonic()
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
