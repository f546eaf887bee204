"""A Vision Transformer is one of the classifiers of `transformers`."""

from models.auto_network import rebuild  # noqa: F401  # as of any other
