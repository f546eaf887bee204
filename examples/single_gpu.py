"""A training script before it is ported: one process, and a GPU if there is one.

    python examples/single_gpu.py photos

The folder `photos` has `train/<class>/` and `val/<class>/` with images.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ImageFolder(Dataset):
    """Images of 32 x 32 in folders by class."""

    def __init__(self, folder: Path):
        self.classes = sorted(path.name for path in folder.iterdir())
        self.files = sorted(folder.glob("*/*"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        image = Image.open(file).convert("RGB").resize((32, 32))
        pixels = torch.from_numpy(np.asarray(image, np.float32).transpose(2, 0, 1) / 255)
        return (pixels - 0.5) / 0.5, self.classes.index(file.parent.name)


def build_model(num_classes, width=16, channels=3):
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, num_classes),
    )


def train(config):
    """Trains, and keeps the weights of each epoch."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(config["seed"])
    train_data = ImageFolder(Path(config["folder"]) / "train")
    val_data = ImageFolder(Path(config["folder"]) / "val")
    train_loader = DataLoader(train_data, config["batch_size"], shuffle=True)
    val_loader = DataLoader(val_data, config["batch_size"])
    model = build_model(len(train_data.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    for epoch in range(config["epochs"]):
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
        metrics = {"loss": loss.item(), "val_accuracy": hits.item() / len(val_data)}
        torch.save(model.state_dict(), "model.pt")
        print(epoch, metrics)


if __name__ == "__main__":
    train({"folder": sys.argv[1], "epochs": 10, "batch_size": 64, "lr": 1e-3, "seed": 0})
