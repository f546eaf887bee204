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

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, JsonValue, WithJsonSchema, model_validator

from models import fine_tuned
from models.architecture import (
    DECIDED,
    Architecture,
    classifiers,
    fit,
    load,
    published,
    take_over,
    written,
)
from models.pretrained import (  # noqa: F401  # the interface of a family
    Pretrained,
    pretrained_faults,
    pretrained_version,
    read_config,
)

if TYPE_CHECKING:
    from models.network import Network

# Any values that JSON can hold; the schema has no reference, so that it can be a part of another.
Config = Annotated[
    dict[str, JsonValue], WithJsonSchema({"additionalProperties": True, "type": "object"})
]


class Settings(Pretrained):
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


def library_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds faults of the config, or of that of the pretrained network if it is on this machine.

    The network is tried without memory, which takes seconds with the import of torch.

    Args:
        settings: The settings of the network, with the version of the weights.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Yields:
        A sentence for each fault.
    """
    try:
        with fine_tuned.quiet():
            if architecture := _architecture(settings, shape[2], root):
                fit(architecture, shape)
    except ValueError as error:
        yield str(error)


def without_memory(settings: Settings, shape: tuple[int, int, int], root: Path) -> "Network | None":
    """The network as tensors that have shapes but no values.

    Args:
        settings: The settings of the network, with the version of the weights.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Returns:
        None if its configuration is not on this machine, or fits no network.
    """
    from models.network import Network

    try:
        with fine_tuned.quiet():
            if (architecture := _architecture(settings, shape[2], root)) is None:
                return None
            classifier = architecture.without_memory(architecture.config_for(shape, 2))
    except ValueError:
        return None  # `library_faults` says why
    half = fine_tuned.HALF * shape[2]
    return Network(classifier, {}, half, half).to("meta")


def build(settings: Settings, shape: tuple[int, int, int], classes: int) -> "Network":
    """Makes a new network, with random weights or pretrained ones.

    Parameters that no gradient reaches, such as a mask token, are not trained.

    Args:
        settings: The settings of the network.
        shape: Height (= width), width and channels of the images.
        classes: The number of classes.

    Raises:
        ValueError: The settings do not fit the images, or there is no such pretrained model.
        OSError: The hub cannot be reached.
    """
    from models.network import wrap

    mean: Sequence[float] = fine_tuned.HALF * shape[2]
    std = mean
    if settings.config is not None:
        with fine_tuned.quiet():
            architecture = written(settings.config)
            idle = fit(architecture, shape)
            classifier = architecture.kind(architecture.config_for(shape, classes))
    else:
        from transformers import PreTrainedConfig

        assert settings.pretrained is not None
        with fine_tuned.loading(settings.pretrained, settings.pretrained_version) as where:
            config, _ = PreTrainedConfig.get_config_dict(**where)
            architecture = published(settings.pretrained, config, shape[2])
            idle = fit(architecture, shape)
            weights = load(architecture, where)
            classifier = architecture.kind(architecture.config_for(shape, classes))
            take_over(weights, classifier)
            mean, std = fine_tuned.follow_processor(where, classifier, shape[2])
    for name, parameter in classifier.named_parameters():
        parameter.requires_grad_(name not in idle)
    return wrap(classifier, mean, std)


def rebuild(description: Mapping[str, Any], files: Mapping[str, Path]) -> "Network":
    """Makes a network as it was saved, its weights still to be loaded."""
    from models.network import wrap

    config = description["config"]
    [architecture] = config["architectures"]
    kind = classifiers(config)[architecture]
    with fine_tuned.quiet():
        classifier = kind(kind.config_class.from_dict(dict(config)))
    return wrap(classifier, description["mean"], description["std"])


def _architecture(settings: Settings, channels: int, root: Path) -> Architecture | None:
    """What the network is made from; None if its configuration has to be downloaded first."""
    if settings.config is not None:
        return written(settings.config)
    name, version = settings.pretrained, settings.pretrained_version
    config = read_config(name, version, root) if name and version else None
    return published(name, config, channels) if name and config else None
