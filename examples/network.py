"""The network of `single_gpu.py`, in a module of its own, which is all that is served.

model: {family: custom, factory: examples.network:build_model}
"""

from torch import nn


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
