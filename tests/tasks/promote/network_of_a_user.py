"""A network of a user's, for `test_package.py`: its module needs scipy, and others unseen."""

from importlib import import_module

from scipy.special import expit
from torch import nn


def build_model(num_classes, unseen):
    import_module(unseen)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes, bias=bool(expit(1.0))))
