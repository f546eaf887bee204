"""The image classifiers of `transformers`: how one is made again from its config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.network import Network, wrap


def rebuild(description: Mapping[str, Any], files: Mapping[str, Path]) -> Network:
    """Makes a network as it was saved, its weights still to be loaded."""
    from transformers import CONFIG_MAPPING, AutoModelForImageClassification

    saved = dict(description["config"])
    config = CONFIG_MAPPING[saved["model_type"]].from_dict(saved)
    classifier = AutoModelForImageClassification.from_config(config)
    return wrap(classifier, description["mean"], description["std"])
