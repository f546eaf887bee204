"""Every image classifier of `transformers`: pretrained, or from a config with random weights.

The architectures are those of `AutoModelForImageClassification`: ResNet, ConvNeXt, Swin, BEiT,
DeiT, DINOv2, MobileNetV2 and more. Whether one takes images of `images.size` is tried with tensors
that have shapes but no memory.

A pretrained network keeps its weights but for the last layer, its own dropout, and the values of
pixels that its image processor gives it (from -1 to 1 without one). Nothing else of the processor
counts: the project prepares the images, as `images` says. For images of another size than it was
made for, learned position embeddings are interpolated once (bicubic, as `transformers` does);
convolutions take any size; a network whose other weights depend on the size is refused.

Batch norms see the images that go through the network at once: a worker's own, and of these only
`train.micro_batch`. The statistics that are kept, and evaluated, are the first worker's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, JsonValue, WithJsonSchema, model_validator

from models import pretrained
from models.family import Shape
from models.pretrained import HALF, Pretrained

if TYPE_CHECKING:
    from torch import Tensor

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

    def without_memory(self, shape: Shape, root: Path) -> "Network":
        """The network with tensors that have shapes but no values."""
        from models.network import Network

        half = HALF * shape[2]
        return Network(_try(self, shape, 2, root), {}, half, half).to("meta")

    def build(self, shape: tuple[int, ...], classes: int) -> "Network":
        """Makes a new network, with random weights or pretrained ones.

        Parameters that no gradient reaches, such as a mask token, are not trained.
        """
        from transformers import AutoModelForImageClassification

        from models.auto_network import wrap

        height, width, channels = shape
        tried = _try(self, (height, width, channels), classes, Path())
        classifier = AutoModelForImageClassification.from_config(tried.config)
        mean: Sequence[float] = HALF * channels
        std = mean
        if self.pretrained is not None:
            wider = _without_memory(_config(self, (height, width, channels), classes + 1, Path()))
            mean, std = _take_weights(self, classifier, _shapes(wider), channels)
        idle = {name for name, parameter in tried.named_parameters() if parameter.grad is None}
        for name, parameter in classifier.named_parameters():
            parameter.requires_grad_(name not in idle)
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
        if decided := [name for name in DECIDED if name in self.config]:
            raise ValueError(f"config: leave out {', '.join(decided)}: the images decide")
        return self


def _config(settings: Any, shape: Shape | None, classes: int, root: Path) -> Any:
    """The config of `transformers` for some images.

    Args:
        settings: A `Classifier` with a `config`.
        shape: Height, width and channels of the images; the network's own sizes if None.
        classes: How many there are.
        root: Where a relative path starts.

    Raises:
        ValueError: There is no such network, or a value is wrong.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import (
        CONFIG_MAPPING,
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        PreTrainedConfig,
    )

    name, place = settings.pretrained, _place(settings)
    given = settings.config or pretrained.read_config(name, settings.pretrained_version, root)
    model_type = given["model_type"]
    if model_type not in CONFIG_MAPPING or (
        CONFIG_MAPPING[model_type] not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    ):
        raise ValueError(f"{place}: transformers has no image classifier {model_type!r}.")
    kind = CONFIG_MAPPING[model_type]
    if name is None:
        decided = {*DECIDED, *(field.name for field in fields(PreTrainedConfig))}
        own = {field.name for field in fields(kind)} - decided
        for parameter in given.keys() - own - {"model_type"}:
            raise ValueError(f"model.config.{parameter}: {model_type} has no such parameter.")
    elif shape is not None:
        pretrained.check_channels(name, given, shape[2])
    try:
        config = kind.from_dict(dict(given))
    except (StrictDataclassError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{place}: {pretrained.first_line(error)}") from error
    config.num_labels, config.dtype = classes, None
    config.architectures = config.architectures or []  # `transformers` demands a list
    if shape is not None:
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


def _without_memory(config: Any) -> Any:
    import torch
    from transformers import AutoModelForImageClassification

    with torch.device("meta"):
        return AutoModelForImageClassification.from_config(config)


def _try(settings: Any, shape: Shape, classes: int, root: Path) -> Any:
    """A network without memory that has learnt from images; see `pretrained.try_without_memory`.

    Raises:
        ValueError: There is no such network, or it does not take the images.
    """
    pretrained.quiet()
    config, place = _config(settings, shape, classes, root), _place(settings)
    network = pretrained.try_without_memory(
        lambda: _without_memory(config).train(),
        shape,
        f"{place}: this {config.model_type} cannot take",
    )
    if settings.pretrained is not None:
        own_config = _config(settings, None, classes, root)
        before = _shapes(_without_memory(own_config))
        for name, after in _shapes(network).items():
            if before[name] != after and _extra_tokens(name, before[name], after) is None:
                own_size = getattr(own_config, "vision_config", own_config).image_size
                raise ValueError(
                    f"{place} takes images of one size only, because of its {name}: "
                    f"set images.size={own_size}."
                )
    return network


def _shapes(network: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def _take_weights(
    settings: Any, classifier: Any, wider: Mapping[str, tuple[int, ...]], channels: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Gives a new network the weights of a pretrained one, but for the last layer.

    Args:
        settings: A `Classifier` with `pretrained`.
        classifier: The network, perhaps for images of another size.
        wider: The shapes of its tensors if there were another class.
        channels: The number of channels of the images.

    Returns:
        The mean and the standard deviation of its pixels, as `follow_processor` gives them.

    Raises:
        ValueError: The files hold weights of another network.
    """
    name, version = settings.pretrained, settings.pretrained_version
    network, lacking = pretrained.load(type(classifier), name, version)
    mean, std = pretrained.follow_processor(pretrained.where(name, version), network, channels)
    tensors, loaded = classifier.state_dict(), network.state_dict()
    kept = [each for each, tensor in tensors.items() if tuple(tensor.shape) == wider[each]]
    if len(missing := lacking.intersection(kept)) > MOST_MISSING * len(kept):
        raise ValueError(
            f"{_place(settings)} is called a {classifier.config.model_type}, but its files hold "
            f"other weights: they lack {min(missing)}, for example."
        )
    for each in kept:
        tensors[each].copy_(_resized(each, loaded[each], tensors[each].shape))
    return mean, std


def _extra_tokens(name: str, before: Sequence[int], after: Sequence[int]) -> int | None:
    """How many position embeddings, (…, tokens, width), are of no patch, but of a whole image.

    Returns:
        None for other parameters, or if the patches are no square before and after.
    """
    if "position_embedding" not in name or before[-1] != after[-1]:
        return None
    for extra in range(3):  # none, the token of the class, that of distillation
        if all(isqrt(shape[-2] - extra) ** 2 == shape[-2] - extra for shape in (before, after)):
            return extra
    return None


def _resized(name: str, value: "Tensor", shape: Sequence[int]) -> "Tensor":
    """A tensor of a pretrained network in another shape: position embeddings are interpolated.

    Args:
        name: The name of the tensor.
        value: (…, extra + old², width), if the shape is another one.
        shape: (…, extra + new², width).
    """
    import torch

    extra = _extra_tokens(name, value.shape, shape)
    if value.shape == shape or extra is None:
        return value
    extra_tokens, patches = value[..., :extra, :], value[..., extra:, :]
    width, old, new = shape[-1], isqrt(patches.shape[-2]), isqrt(shape[-2] - extra)
    image = patches.reshape(1, old, old, width).permute(0, 3, 1, 2)
    image = torch.nn.functional.interpolate(image, (new, new), mode="bicubic", align_corners=False)
    patches = image.permute(0, 2, 3, 1).reshape(*shape[:-2], new * new, width)
    return torch.cat((extra_tokens, patches), dim=-2)
