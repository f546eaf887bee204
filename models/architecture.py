"""Which image classifier of `transformers` a config makes, for which images, with which weights."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isqrt
from typing import TYPE_CHECKING, Any

from models import fine_tuned, pretrained

if TYPE_CHECKING:
    from torch import Tensor

# Keys of a config that the images decide.
DECIDED = ("id2label", "image_size", "label2id", "num_channels", "num_labels")
# Keys of a published config about its last layer, or about another use than this one.
NOT_TAKEN = ("dtype", "id2label", "label2id", "num_labels", "output_attentions",
             "output_hidden_states", "problem_type", "return_dict", "torch_dtype")  # fmt: skip
# More of its parameters must not be missing from the files of a pretrained network.
MOST_MISSING = 0.1


@dataclass(frozen=True)
class Architecture:
    """What a network is made from.

    Attributes:
        place: The setting that names the network, for messages.
        kind: The class of the classifier, of `transformers`.
        config: The configuration, as it was published or as the settings have it.
        is_pretrained: Whether it was published with weights.
    """

    place: str
    kind: Any
    config: Mapping[str, Any]
    is_pretrained: bool

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
    """Describes what a pretrained network is made from.

    Args:
        name: The name of the pretrained model in the settings.
        config: The configuration of the model, as it was published.
        channels: The number of channels of the images.

    Raises:
        ValueError: The model does not classify images, or takes images of other channels.
    """
    pretrained.check_config(name, config, channels)
    classes, place = classifiers(config), f"model.pretrained: {name}"
    if not classes:
        raise ValueError(
            f"{place} is a {config['model_type']}, which transformers has no image classifier for."
        )
    named = [
        name_of_class
        for name_of_class in config.get("architectures") or ()
        if name_of_class in classes
    ]
    network_config = {key: value for key, value in config.items() if key not in NOT_TAKEN}
    return Architecture(
        place, classes[named[0] if named else next(iter(classes))], network_config, True
    )


def written(config: Mapping[str, Any]) -> Architecture:
    """Describes what a network with random weights is made from.

    Args:
        config: The configuration, as the settings have it.

    Raises:
        ValueError: There is no such type, or it has no such parameter.
    """
    from transformers import PreTrainedConfig

    classes, model_type = classifiers(config), config["model_type"]
    if not classes:
        raise ValueError(
            f"model.config.model_type: no image classifier {model_type!r} in transformers."
        )
    kind = next(iter(classes.values()))
    decided = {*DECIDED, *(field.name for field in fields(PreTrainedConfig))}
    own = {field.name for field in fields(kind.config_class)} - decided
    for name in config.keys() - own - {"model_type"}:
        raise ValueError(f"model.config.{name}: {model_type} has no such parameter.")
    return Architecture("model.config", kind, config, False)


def vision_config(config: Any) -> Any:
    """The part of a config that is about images; that of CLIP has another one about text."""
    return getattr(config, "vision_config", config)


def fit(architecture: Architecture, shape: tuple[int, int, int]) -> frozenset[str]:
    """Checks that a network takes the images, with random weights or with pretrained ones.

    Returns:
        The names of the parameters that no gradient reaches.

    Raises:
        ValueError: The network does not take them, or a value of its config is wrong.
    """
    config = architecture.config_for(shape, 2)
    network = fine_tuned.try_without_memory(
        lambda: architecture.kind(config).train(),
        shape,
        f"{architecture.place}: this {architecture.config['model_type']} cannot take",
    )
    if architecture.is_pretrained:
        own_config = architecture.config_for(None, 2)
        old_shapes = _shapes(architecture.without_memory(own_config))
        for name, new_shape in _shapes(network).items():
            if new_shape != old_shapes[name] and _grids(name, old_shapes[name], new_shape) is None:
                raise ValueError(
                    f"{architecture.place} takes images of one size only, because of its {name}: "
                    f"set images.size={vision_config(own_config).image_size}."
                )
    return frozenset(
        name for name, parameter in network.named_parameters() if parameter.grad is None
    )


def _shapes(network: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def _grids(
    name: str, before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[int, int, int] | None:
    """The grids of position embeddings, (…, tokens, width), for images of two sizes.

    Returns:
        How many of the embeddings are not of patches, and the side of the grid of patches before
        and after; None for other parameters.
    """
    if "position_embedding" not in name or before[-1] != after[-1]:
        return None
    for extra in range(3):  # none, the token of the class, that of distillation
        old, new = before[-2] - extra, after[-2] - extra
        if isqrt(old) ** 2 == old and isqrt(new) ** 2 == new:
            return extra, isqrt(old), isqrt(new)
    return None


def load(architecture: Architecture, where: Mapping[str, Any]) -> dict[str, "Tensor"]:
    """The weights of a pretrained network, float32 and of its own sizes, but for its last layer.

    Args:
        architecture: What it is made from.
        where: Where the files are, as `fine_tuned.loading` gives it.

    Raises:
        ValueError: The files hold weights of another network.
    """
    import torch

    network, loading_info = architecture.kind.from_pretrained(
        **where,
        config=architecture.config_for(None, 2),
        dtype=torch.float32,
        ignore_mismatched_sizes=True,  # of the last layer
        output_loading_info=True,
    )
    sizes = {name: parameter.numel() for name, parameter in network.named_parameters()}
    more_classes = _shapes(architecture.without_memory(architecture.config_for(None, 3)))
    last_layer = {name for name, shape in _shapes(network).items() if shape != more_classes[name]}
    missing = {
        *loading_info["missing_keys"],
        *(parameter[0] for parameter in loading_info["mismatched_keys"]),
    } - last_layer
    if sum(sizes.get(name, 0) for name in missing) > MOST_MISSING * sum(sizes.values()):
        raise ValueError(
            f"{architecture.place} is called a {architecture.config['model_type']}, but its files "
            f"hold other weights: they lack {min(missing)}, for example."
        )
    return {name: value for name, value in network.state_dict().items() if name not in last_layer}


def take_over(weights: Mapping[str, "Tensor"], classifier: Any) -> None:
    """Gives a network with random weights those of a pretrained one.

    Args:
        weights: The weights of the pretrained network, as `load` returns them.
        classifier: The network, perhaps for images of another size.
    """
    tensors = classifier.state_dict()
    for name, value in weights.items():
        old_shape, new_shape = tuple(value.shape), tuple(tensors[name].shape)
        if old_shape != new_shape and (grids := _grids(name, old_shape, new_shape)):
            value = _interpolate(value, *grids)
        tensors[name] = value
    classifier.load_state_dict(tensors)


def _interpolate(positions: "Tensor", extra: int, old: int, new: int) -> "Tensor":
    """Position embeddings for another number of patches.

    Args:
        positions: (…, extra + old², width).
        extra: Tokens before those of the patches.
        old: Side of the grid of patches.
        new: Side of the grid of patches afterwards.

    Returns:
        (…, extra + new², width).
    """
    import torch

    extra_tokens, patches = positions[..., :extra, :], positions[..., extra:, :]
    width = positions.shape[-1]
    image = patches.reshape(1, old, old, width).permute(0, 3, 1, 2)
    image = torch.nn.functional.interpolate(image, (new, new), mode="bicubic", align_corners=False)
    patches = image.permute(0, 2, 3, 1).reshape(*positions.shape[:-2], new * new, width)
    return torch.cat((extra_tokens, patches), dim=-2)
