"""A network of a user's, for `test_package.py`, whose module needs a further library."""

from scipy.special import expit
from torch import nn


def build_model(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes, bias=bool(expit(1.0))))
