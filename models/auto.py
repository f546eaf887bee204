"""Every image classifier of `transformers`: pretrained, or from a config with random weights.

The architectures are those of `AutoModelForImageClassification`: ResNet, ConvNeXt, Swin, BEiT,
DeiT, DINOv2, MobileNetV2 and more. Whether one takes images of `images.size` is tried with tensors
that have shapes but no memory.

A pretrained network keeps its weights but for the last layer, its own dropout, and the values of
pixels that its image processor gives it (from -1 to 1 without one). Nothing else of the processor
counts: the project prepares the images, as `images` says. A network that does not take images of
another size than it was made for, because its weights depend on the size, is refused. One that
interpolates what it has learnt about positions takes them, and that is not trained then: on GPUs,
the gradient of an interpolation is not the same each time.

Batch norms see the images that go through the network at once: a worker's own, and of these only
`train.micro_batch`. The statistics that are kept, and evaluated, are the first worker's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, JsonValue, WithJsonSchema, model_validator

from models import pretrained
from models.family import Shape
from models.pretrained import HALF, Pretrained

if TYPE_CHECKING:
    from models.network import Network

# Any values that JSON can hold; the schema has no reference, so that it can be a part of another.
Config = Annotated[
    dict[str, JsonValue], WithJsonSchema({"additionalProperties": True, "type": "object"})
]
# Keys of a config that the images decide.
DECIDED = ("id2label", "image_size", "label2id", "num_channels", "num_labels")
# More of its tensors must not be missing from the files of a pretrained network.
MOST_MISSING = 0.1


class Classifier(Pretrained):
    """The settings of a classifier of `transformers`: of a pretrained one, or of one with a config.

    A family with such a config has it as `config`; None for a pretrained network.
    """

    def check_network(self, shape: Shape, root: Path) -> None:
        """Checks that the network learns from images of the shape, without memory."""
        _try(self, shape, 2, root)

    def build(self, shape: tuple[int, ...], classes: int) -> "Network":
        """Makes a new network, with random weights or pretrained ones.

        Parameters that no gradient reaches, such as a mask token, are not trained, nor are those of
        positions that a pretrained network may interpolate.
        """
        from transformers import AutoModelForImageClassification

        from models.network import wrap

        height, width, channels = shape
        tried = _try(self, (height, width, channels), classes, Path())
        classifier = AutoModelForImageClassification.from_config(tried.config)
        mean: Sequence[float] = HALF * channels
        std = mean
        if self.pretrained is not None:
            wider = _try(self, (height, width, channels), classes + 1, Path())
            mean, std = _take_weights(self, classifier, wider)
        own_size = getattr(getattr(tried.config, "vision_config", tried.config), "image_size", None)
        interpolates = own_size not in (None, height, [height, width])
        for name, parameter in tried.named_parameters():
            is_idle = parameter.grad is None or (interpolates and "position" in name)
            classifier.get_parameter(name).requires_grad_(not is_idle)
        return wrap(classifier, mean, std)


class Settings(Classifier):
    """A network's settings in `params.yaml`; exactly one of `pretrained` and `config` is given."""

    config: Config | None = Field(
        default=None,
        description=(
            "Of a network with random weights: `model_type`, and any parameter of that type's "
            "config class in `transformers`, dropout too: `{model_type: resnet, depths: [2, 2]}`. "
            "The images decide the size, the channels and the number of classes."
        ),
    )

    @model_validator(mode="after")
    def _goes_together(self) -> "Settings":
        if self.config is None:
            if self.pretrained is None:
                raise ValueError(
                    "config: missing; give it, or model.pretrained. An example is "
                    "{model_type: resnet, depths: [2, 2, 2, 2]}"
                )
            return self
        if self.pretrained is not None:
            raise ValueError(
                "pretrained: brings its own config: leave out config (--set model.config=)"
            )
        if not isinstance(self.config.get("model_type"), str):
            raise ValueError("config: needs a model_type, such as resnet")
        return self


def _config(settings: Any, shape: Shape, classes: int, root: Path) -> Any:
    """The config of `transformers` for some images.

    Args:
        settings: A `Classifier` with a `config`.
        shape: Height, width and channels of the images.
        classes: How many there are.
        root: Where a relative path starts.

    Raises:
        ValueError: There is no such network, or a value is wrong.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS,
    )

    name, given, published = settings.pretrained, settings.config, None
    if name is not None:
        published = pretrained.read_config(name, settings.pretrained_version, root)
    kind = published.model_type if published else given["model_type"]
    if kind not in CLASSIFIERS:
        raise ValueError(f"{_place(settings)}: transformers has no image classifier {kind!r}.")
    config = published or _new_config(given, shape)
    config.num_labels, config.dtype = classes, None
    config.architectures = config.architectures or []  # `transformers` demands a list
    return config


def _new_config(given: Mapping[str, Any], shape: Shape) -> Any:
    """The config of a network with random weights.

    Raises:
        ValueError: There is no such network, or a value is wrong.
    """
    from transformers import AutoConfig, PreTrainedConfig

    try:
        config = AutoConfig.for_model(**given)
    except Exception as error:  # whatever the code of an architecture stumbles over
        raise ValueError(f"model.config: {pretrained.first_line(error)}.") from error
    decided = {*DECIDED, *(field.name for field in fields(PreTrainedConfig))}
    own = {field.name for field in fields(config)} - decided
    for parameter in given.keys() - own - {"model_type"}:
        raise ValueError(
            f"model.config.{parameter}: {config.model_type} has no such parameter, or the images "
            "decide it."
        )
    # The config of CLIP has another part about text.
    vision, size = getattr(config, "vision_config", config), shape[0]
    if hasattr(vision, "image_size"):
        vision.image_size = size if isinstance(vision.image_size, int) else [size, size]
    if hasattr(vision, "num_channels"):
        vision.num_channels = shape[2]
    return config


def _place(settings: Any) -> str:
    """The setting that names the network, for messages."""
    return "model.config" if settings.config else f"model.pretrained: {settings.pretrained}"


def _try(settings: Any, shape: Shape, classes: int, root: Path) -> Any:
    """A network on the meta device that has learnt from images; see `pretrained.try_on_meta`.

    Raises:
        ValueError: There is no such network, or it does not take the images.
    """
    from transformers import AutoModelForImageClassification

    config = _config(settings, shape, classes, root)
    return pretrained.try_on_meta(
        lambda: AutoModelForImageClassification.from_config(config).train(),
        shape,
        f"{_place(settings)}: this {config.model_type} cannot take",
    )


def _take_weights(
    settings: Any, classifier: Any, wider: Any
) -> tuple[Sequence[float], Sequence[float]]:
    """Gives a new network the weights of a pretrained one, but for the last layer.

    Args:
        settings: A `Classifier` with `pretrained`.
        classifier: The network.
        wider: What it would be if there were another class.

    Returns:
        The mean and the standard deviation of its pixels, as `pretrained.load` gives them.

    Raises:
        ValueError: The files hold weights of another network.
    """
    name, version = settings.pretrained, settings.pretrained_version
    network, lacking, mean, std = pretrained.load(type(classifier), name, version)
    shapes = {each: tensor.shape for each, tensor in wider.state_dict().items()}
    own = classifier.state_dict()
    kept = {
        each: tensor
        for each, tensor in network.state_dict().items()
        if own[each].shape == shapes[each]
    }
    if len(missing := lacking.intersection(kept)) > MOST_MISSING * len(kept):
        raise ValueError(
            f"{_place(settings)} is called a {classifier.config.model_type}, but its files hold "
            f"other weights: they lack {min(missing)}, for example."
        )
    classifier.load_state_dict(kept, strict=False)
    return mean, std
