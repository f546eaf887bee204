"""The image classifiers of `transformers`: how one is made again from its config."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.network import Network, config_of


def wrap(classifier: Any, mean: Sequence[float], std: Sequence[float]) -> Network:
    """Wraps an image classifier of `transformers`, and describes it by its config."""
    extra = {"num_labels": classifier.num_labels, "architectures": [type(classifier).__name__]}
    return Network(classifier, config_of(classifier) | extra, mean, std)


def rebuild(description: Mapping[str, Any], files: Mapping[str, Path]) -> Network:
    """Makes a network as it was saved, its weights still to be loaded."""
    from transformers import CONFIG_MAPPING, AutoModelForImageClassification

    saved = dict(description["config"])
    config = CONFIG_MAPPING[saved["model_type"]].from_dict(saved)
    classifier = AutoModelForImageClassification.from_config(config)
    return wrap(classifier, description["mean"], description["std"])
