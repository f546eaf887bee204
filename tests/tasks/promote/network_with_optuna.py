"""A network of a user's, for `test_package.py`, which imports a library so that nobody sees it."""

from importlib import import_module

from torch import nn


def build_model(num_classes):
    import_module("optuna")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
