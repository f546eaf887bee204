"""Vision Transformer (Dosovitskiy et al., 2021): from a config, or from pretrained weights."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from models import fine_tuned, pretrained
from models.cost import MOST_PARAMETERS, Transformer

if TYPE_CHECKING:
    from models.network import Network

Width = Annotated[int, Field(ge=1, le=1 << 16)]

KEPT_WITH_PRETRAINED = {"pretrained", "pretrained_version", "dropout"}


class Settings(BaseModel):
    """A ViT's settings in `params.yaml`.

    Attributes:
        pretrained: A model on the Hugging Face hub, `owner/name` or `owner/name@revision`, or a
            folder that holds one; a relative path is below the project. Its head is replaced; its
            sizes are used.
        pretrained_version: The commit on the hub, or the digest of the folder's files. It is found
            when a workload is read; if it is given, no other version is used.
        patch_size: Side of a patch in pixels; it divides `images.size`.
        hidden_size: Width of a token's representation; `heads` divides it.
        layers: Transformer blocks.
        heads: Attention heads in each block.
        mlp_ratio: Width of a block's MLP, in `hidden_size`s.
        dropout: Of the blocks' outputs and of the attention.
        initializer_range: Standard deviation of the initial weights; `1 / sqrt(hidden_size)` when
            None, which keeps a layer's output as large as its input (LeCun et al., 1998). The 0.02
            of `transformers` is made for widths near 768; a narrow network learns badly from it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    pretrained: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    pretrained_version: Annotated[str, Field(pattern="^[0-9a-f]{40,64}$")] | None = None
    patch_size: Annotated[int, Field(ge=1, le=4096)] = 16
    hidden_size: Width = 384
    layers: Annotated[int, Field(ge=1, le=1000)] = 12
    heads: Width = 6
    mlp_ratio: Annotated[float, Field(gt=0, le=1000)] = 4.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    initializer_range: Annotated[float, Field(gt=0, le=100)] | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> "Settings":
        if self.pretrained is not None:
            own = sorted(self.model_fields_set - KEPT_WITH_PRETRAINED)
            if own:
                drop = " ".join(f"--set model.{name}=" for name in own)
                raise ValueError(
                    f"pretrained: brings its own sizes: leave out {', '.join(own)} ({drop})"
                )
        elif self.pretrained_version is not None:
            raise ValueError("pretrained_version: is of no use without model.pretrained")
        elif self.hidden_size % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide hidden_size {self.hidden_size}")
        elif self.mlp_size < 1:
            raise ValueError(f"mlp_ratio: {self.mlp_ratio:g} leaves the MLPs no width")
        return self

    @property
    def mlp_size(self) -> int:
        """Width of a block's MLP."""
        return round(self.hidden_size * self.mlp_ratio)


def faults(settings: Settings, shape: tuple[int, int, int]) -> list[str]:
    """Finds settings that do not fit the images, as far as that is known beforehand.

    Args:
        settings: Of the network; the image size of a pretrained one is known after its download.
        shape: Height, width and channels of the images.

    Returns:
        A sentence for each fault.
    """
    patch, size = settings.patch_size, shape[0]
    if settings.pretrained is None and size % patch:
        return [f"model.patch_size: {patch} does not divide images.size {size}."]
    if settings.pretrained is None and parameters(settings, shape, classes=0) > MOST_PARAMETERS:
        return [
            f"model.hidden_size {settings.hidden_size} with model.layers {settings.layers} makes "
            "more than 10^12 parameters."
        ]
    return []


def pretrained_version(settings: Settings, root: Path) -> str | None:
    """The version of the pretrained weights; None without any, or if it is not known.

    Args:
        settings: Of the network.
        root: Where a relative path starts.
    """
    return pretrained.version(settings.pretrained, settings.pretrained_version, root)


def pretrained_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds faults of the pretrained weights, as far as they are known before a download.

    Args:
        settings: Of the network, with the version of the weights.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Yields:
        A sentence for each fault.
    """
    name = settings.pretrained
    if name is not None:
        yield from pretrained.faults(
            name,
            settings.pretrained_version,
            root,
            lambda config: _check_shape(name, config, shape),
        )


def library_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds nothing: `faults` and `pretrained_faults` find all there is."""
    yield from ()


def sized(settings: Settings, root: Path) -> Settings | None:
    """The settings with the sizes of the pretrained network; None if they are not known yet.

    Args:
        settings: Of the network, with the version of the weights.
        root: Where a relative path starts.
    """
    if settings.pretrained is None:
        return settings
    if settings.pretrained_version is None:
        return None
    given = pretrained.read_config(settings.pretrained, settings.pretrained_version, root)
    if given is None:
        return None
    hidden = given.get("hidden_size", 768)
    return Settings(
        patch_size=given.get("patch_size", 16),
        hidden_size=hidden,
        layers=given.get("num_hidden_layers", 12),
        heads=given.get("num_attention_heads", 12),
        mlp_ratio=given.get("intermediate_size", 3072) / hidden,
        dropout=settings.dropout,
    )


def parameters(settings: Settings, shape: tuple[int, int, int], classes: int) -> int:
    """The number of parameters.

    Args:
        settings: Of the network, with its sizes.
        shape: Height, width and channels of the images.
        classes: How many there are.
    """
    return _transformer(settings).parameters(shape, classes)


def lora_parameters(settings: Settings, rank: int, classes: int) -> int:
    """The number of parameters that low-rank adapters and a new last layer have.

    Args:
        settings: Of the network, with its sizes.
        rank: Of the adapters.
        classes: How many there are.
    """
    return _transformer(settings).lora_parameters(rank, classes)


def flops(settings: Settings, shape: tuple[int, int, int]) -> float:
    """The cost of a forward pass over one image, counting only the large matrix products.

    Args:
        settings: Of the network; one that is pretrained counts as infinitely large, because its
            sizes are not known before the download, and published ones are large.
        shape: Height, width and channels of the images.

    Returns:
        Floating-point operations; a multiplication with its addition is two.
    """
    if settings.pretrained is not None:
        return float("inf")
    return _transformer(settings).flops(shape)


def activations(
    settings: Settings, shape: tuple[int, int, int], device: str, precision: str
) -> float:
    """Memory of one image in a training step: what the backward pass needs, and its peak.

    Args:
        settings: Of the network, with its sizes.
        shape: Height, width and channels of the images.
        device: `cpu` or `cuda`.
        precision: `fp32` or `bf16`.

    Returns:
        Bytes.
    """
    return _transformer(settings).activations(shape, device, precision)


def _transformer(settings: Settings) -> Transformer:
    return Transformer(
        patch_size=settings.patch_size,
        hidden_size=settings.hidden_size,
        layers=settings.layers,
        heads=settings.heads,
        mlp_size=settings.mlp_size,
        dropout=settings.dropout,
    )


def build(settings: Settings, shape: tuple[int, int, int], classes: int) -> "Network":
    """Makes a new network, with random weights or pretrained ones.

    Args:
        settings: Of the network.
        shape: Height (= width), width and channels of the images.
        classes: How many there are.

    Raises:
        ValueError: The settings do not fit the images, or there is no such pretrained model.
        OSError: The hub cannot be reached.
    """
    if settings.pretrained is not None:
        return _fine_tuned(settings, shape, classes)
    size, _, channels = shape
    if wrong := faults(settings, shape):
        raise ValueError("\n".join(wrong))
    from transformers import ViTConfig, ViTForImageClassification

    from models.network import wrap

    config = ViTConfig(
        image_size=size,
        num_channels=channels,
        patch_size=settings.patch_size,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=settings.mlp_size,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        initializer_range=settings.initializer_range or settings.hidden_size**-0.5,
        num_labels=classes,
    )
    half = fine_tuned.HALF * channels
    return wrap(ViTForImageClassification(config), half, half)


def rebuild(description: Mapping[str, Any], files: Mapping[str, Path]) -> "Network":
    """Makes a network as it was saved, its weights still to be loaded."""
    from transformers import ViTConfig, ViTForImageClassification

    from models.network import wrap

    classifier = ViTForImageClassification(ViTConfig(**description["config"]))
    return wrap(classifier, description["mean"], description["std"])


def _fine_tuned(settings: Settings, shape: tuple[int, int, int], classes: int) -> "Network":
    """A pretrained network with a new head."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    from models.network import wrap

    name = settings.pretrained
    assert name is not None
    with fine_tuned.loading(name, settings.pretrained_version) as where:
        given, _ = ViTConfig.get_config_dict(**where)
        _check_shape(name, given, shape)
        config = ViTConfig.from_dict(
            given,
            num_labels=classes,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
        )
        classifier = ViTForImageClassification.from_pretrained(
            **where, config=config, dtype=torch.float32, ignore_mismatched_sizes=True
        )
        mean, std = fine_tuned.follow_processor(where, classifier, config.num_channels)
    # If the number of classes is equal, the old head is loaded too; but its classes are others.
    head = torch.nn.Linear(config.hidden_size, classes)
    torch.nn.init.trunc_normal_(head.weight, std=config.initializer_range)
    torch.nn.init.zeros_(head.bias)
    classifier.classifier = head
    return wrap(classifier, mean, std)


def _check_shape(name: str, config: Mapping[str, Any], shape: tuple[int, int, int]) -> None:
    """Refuses a network that is no ViT, or takes other images; left out are ViT-B's values."""
    if config.get("model_type") != "vit":
        raise ValueError(
            f"model.pretrained: {name} is a {config.get('model_type', 'model without a type')}, "
            "not a vit."
        )
    expected, channels = config.get("image_size", 224), config.get("num_channels", 3)
    height, width = (expected, expected) if isinstance(expected, int) else expected
    if (height, width) != shape[:2]:
        raise ValueError(
            f"model.pretrained: {name} takes images of {height} x {width} pixels, "
            f"but images.size is {shape[0]}."
        )
    if channels != shape[2]:
        raise ValueError(
            f"model.pretrained: {name} takes images of {channels} channels, "
            f"but images.channels is {shape[2]}."
        )
