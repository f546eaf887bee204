"""A network of a user's, for `test_check.py`; its module is copied into a package."""

from importlib import import_module

from torch import nn


def by_import(num_classes):
    """It needs a library that its source does not show."""
    import_module("korn" + "ia")
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
