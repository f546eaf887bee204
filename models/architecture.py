"""Which image classifier of `transformers` a config makes, and that config for other images."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from models import fine_tuned, pretrained

# Keys of a config that the images decide.
DECIDED = ("id2label", "image_size", "label2id", "num_channels", "num_labels")
# Of a published config: about its last layer, or about a use that is not this one.
NOT_TAKEN = ("dtype", "id2label", "label2id", "num_labels", "output_attentions",
             "output_hidden_states", "problem_type", "return_dict", "torch_dtype")  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """What a network is made from.

    Attributes:
        place: Of it in the settings, for messages.
        kind: The class of the classifier, of `transformers`.
        config: As published, or as in the settings.
        is_pretrained: Whether it was published with weights.
    """

    place: str
    kind: Any
    config: Mapping[str, Any]
    is_pretrained: bool

    @property
    def type(self) -> str:
        """Its `model_type`."""
        return str(self.config["model_type"])

    def config_for(self, shape: tuple[int, int, int] | None, classes: int) -> Any:
        """The config of `transformers` for some images.

        Args:
            shape: Height, width and channels of the images; its own sizes if None.
            classes: How many there are.

        Raises:
            ValueError: A value is wrong.
        """
        from huggingface_hub.errors import StrictDataclassError

        try:
            config = self.kind.config_class.from_dict(dict(self.config) | {"num_labels": classes})
        except (StrictDataclassError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{self.place}: {fine_tuned.first_line(error)}") from error
        if shape is not None:
            vision, size = vision_config(config), shape[0]
            if hasattr(vision, "image_size"):
                vision.image_size = size if isinstance(vision.image_size, int) else [size, size]
            if hasattr(vision, "num_channels"):
                vision.num_channels = shape[2]
        return config

    def without_memory(self, config: Any) -> Any:
        """A classifier whose tensors have shapes, but no values."""
        import torch

        with torch.device("meta"):
            return self.kind(config)


def classifiers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The image classifiers of a `model_type`, by name; none, if it has none."""
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as NAMES,
    )

    names = NAMES.get(config["model_type"], ())
    names = (names,) if isinstance(names, str) else names
    return {name: getattr(transformers, name) for name in names}


def published(name: str, config: Mapping[str, Any], channels: int) -> Architecture:
    """What a pretrained network is made from.

    Args:
        name: Of the pretrained model in the settings.
        config: As it was published.
        channels: Of the images.

    Raises:
        ValueError: It is none that classifies images, or those of other channels.
    """
    pretrained.check_config(name, config, channels)
    classes, place = classifiers(config), f"model.pretrained: {name}"
    if not classes:
        raise ValueError(
            f"{place} is a {config['model_type']}, which transformers has no image classifier for."
        )
    own = [each for each in config.get("architectures") or () if each in classes]
    kept = {key: value for key, value in config.items() if key not in NOT_TAKEN}
    return Architecture(place, classes[own[0] if own else next(iter(classes))], kept, True)


def written(config: Mapping[str, Any]) -> Architecture:
    """What a network with random weights is made from.

    Args:
        config: As in the settings.

    Raises:
        ValueError: There is no such type, or it has no such parameter.
    """
    from transformers import PreTrainedConfig
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as NAMES,
    )

    classes, model_type = classifiers(config), config["model_type"]
    if not classes:
        raise ValueError(
            f"model.config.model_type: no image classifier {model_type!r} in transformers."
            f"{_hint(model_type, NAMES)}"
        )
    kind = next(iter(classes.values()))
    decided = {*DECIDED, *(field.name for field in fields(PreTrainedConfig))}
    own = {field.name for field in fields(kind.config_class)} - decided
    for name in config.keys() - own - {"model_type"}:
        raise ValueError(
            f"model.config.{name}: {model_type} has no such parameter.{_hint(name, own)}"
        )
    return Architecture("model.config", kind, config, False)


def _hint(name: str, known: Mapping[str, Any] | set[str]) -> str:
    """The second sentence of a message that refuses a name."""
    close = get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def vision_config(config: Any) -> Any:
    """The part of a config that is about images; that of CLIP has another one about text."""
    return getattr(config, "vision_config", config)
