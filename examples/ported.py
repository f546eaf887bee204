"""The training function of `single_gpu.py`, ported: on any number of workers, with resume.

train: {function: examples.ported:train, best: {metric: val_accuracy}}
model: {family: custom, factory: examples.network:build_model}
"""

import tempfile
from pathlib import Path

import ray.train
import ray.train.torch
import torch
from torch import nn
from torch.utils.data import DataLoader


def train(config):
    """Trains, and reports each epoch."""
    device = ray.train.torch.get_device()
    workers = ray.train.get_context().get_world_size()
    train_loader = DataLoader(config["train"], config["batch_size"] // workers, shuffle=True)
    train_loader = ray.train.torch.prepare_data_loader(train_loader)
    val_loader = DataLoader(config["val"], config["batch_size"])
    model = config["model"]
    first_epoch = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as last:
            state = torch.load(Path(last, "model.pt"), weights_only=True)
        model.load_state_dict(state["model"])
        first_epoch = state["epoch"] + 1
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    if checkpoint:
        optimizer.load_state_dict(state["optimizer"])
    for epoch in range(first_epoch, config["epochs"]):
        if workers > 1:
            train_loader.sampler.set_epoch(epoch)
        model.train()
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        hits = torch.zeros((), device=device)
        with torch.inference_mode():
            for images, labels in val_loader:
                images, labels = images.to(device), labels.to(device)
                hits += (model(images).argmax(1) == labels).sum()
        metrics = {"loss": loss.item(), "val_accuracy": hits.item() / len(config["val"])}
        with tempfile.TemporaryDirectory() as folder:
            state = {
                "model": getattr(model, "module", model).state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
            }
            torch.save(state, Path(folder, "model.pt"))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
