"""A training function with Accelerate, which finds the workers of Ray Train by itself.

train: {function: examples.accelerate_loop:train, best: {metric: val_accuracy}}
model: {family: custom, factory: examples.network:build_model}
"""

import tempfile
from pathlib import Path

import ray.train
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def train(config):
    """Trains, and reports each epoch."""
    accelerator = Accelerator()
    size = config["batch_size"] // accelerator.num_processes
    model = config["model"]
    model, optimizer, train_loader, val_loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=config["lr"]),
        DataLoader(config["train"], size, shuffle=True),
        DataLoader(config["val"], size),
    )
    first_epoch = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as last:
            accelerator.load_state(last)
            first_epoch = int(Path(last, "epoch").read_text(encoding="utf-8")) + 1
    for epoch in range(first_epoch, config["epochs"]):
        model.train()
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        model.eval()
        hits = []
        with torch.inference_mode():
            for images, labels in val_loader:
                hits.append(accelerator.gather_for_metrics(model(images).argmax(1) == labels))
        metrics = {"loss": loss.item(), "val_accuracy": torch.cat(hits).float().mean().item()}
        with tempfile.TemporaryDirectory() as folder:
            accelerator.save_state(folder)
            Path(folder, "epoch").write_text(str(epoch), encoding="utf-8")
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
