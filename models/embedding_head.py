"""A head on the embeddings of a pretrained network that stays as it is.

The head is linear (`hidden` wide), batch norm, ReLU, dropout, linear. It is trained on embeddings,
which the step `embed` makes once; what is saved takes images, as any network does. The backbones
are those of `models.backbone`.

Nothing of the backbone's image processor counts but the values of pixels: the project prepares the
images, as `images` says.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from models import fine_tuned, pretrained

if TYPE_CHECKING:
    from torch import nn

    from models.network import Network

# As wide as embeddings are, nearly; it decides no more than threads and precision of the training.
WIDTH = 1024


class Settings(BaseModel):
    """A network's settings in `params.yaml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    pretrained: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description=(
            "The backbone: a model on the Hugging Face hub, `owner/name` or `owner/name@revision`, "
            "or a folder that holds one; a relative path is below the project."
        ),
    )
    pretrained_version: Annotated[str, Field(pattern="^[0-9a-f]{40,64}$")] | None = Field(
        default=None,
        description=(
            "The commit on the hub, or the digest of the folder's files. It is found when a "
            "workload is read; if it is given, no other version is used."
        ),
    )
    hidden: Annotated[int, Field(ge=1, le=1 << 16)] = Field(
        default=256, description="Width of the head's hidden layer."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.3, description="After the hidden layer."
    )


def faults(settings: Settings, shape: tuple[int, int, int]) -> list[str]:
    """None: what does not fit the images is known from the backbone."""
    return []


def flops(settings: Settings, shape: tuple[int, int, int]) -> float:
    """Infinite, as of any pretrained network: evaluation and serving embed images."""
    return float("inf")


def training_flops(settings: Settings, shape: tuple[int, int, int]) -> float:
    """The cost of a forward pass over one embedding: what is trained is the head."""
    return 2.0 * WIDTH * settings.hidden


def pretrained_version(settings: Settings, root: Path) -> str | None:
    """The version of the backbone's weights; None if it is not known.

    Args:
        settings: Of the network.
        root: Where a relative path starts.
    """
    return pretrained.version(settings.pretrained, settings.pretrained_version, root)


def pretrained_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds faults of the backbone that are known without `transformers`.

    Args:
        settings: Of the network, with the version of the weights.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Yields:
        A sentence for each fault.
    """
    name = settings.pretrained
    yield from pretrained.faults(
        name, settings.pretrained_version, root, lambda config: _check_config(name, config, shape)
    )


def library_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds what is wrong with the backbone, if its configuration is on this machine.

    The network is tried without memory, which takes seconds with the import of torch.

    Args:
        settings: Of the network, with the version of the weights.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Yields:
        A sentence for each fault.
    """
    from models import backbone

    name, version = settings.pretrained, settings.pretrained_version
    try:
        if version and (config := pretrained.read_config(name, version, root)):
            with fine_tuned.quiet():
                backbone.check(name, config, shape)
    except ValueError as error:
        yield str(error)


def build(settings: Settings, shape: tuple[int], classes: int) -> "Network":
    """Makes a new head, which takes embeddings; `complete` puts it on its backbone.

    Args:
        settings: Of the network.
        shape: The length of an embedding.
        classes: How many there are.
    """
    from models.backbone import EmbeddingNetwork

    [inputs] = shape
    sizes: dict[str, Any] = {
        "inputs": inputs,
        "hidden": settings.hidden,
        "dropout": settings.dropout,
        "classes": classes,
    }
    return EmbeddingNetwork(None, _head(**sizes), sizes, (), ())


def complete(settings: Settings, trained: "Network") -> "Network":
    """Puts a trained head on its backbone.

    Args:
        settings: Of the network.
        trained: As `build` made it.

    Returns:
        What takes images, on the CPU.

    Raises:
        ValueError: There is no such backbone, or it gives no embedding.
        OSError: The hub cannot be reached.
    """
    from models.backbone import Backbone, EmbeddingNetwork, load

    assert isinstance(trained, EmbeddingNetwork)
    empty = load(settings.pretrained, settings.pretrained_version)
    assert isinstance(empty.backbone, Backbone)
    mean, std = empty.description["mean"], empty.description["std"]
    sizes = trained.description["config"]["head"]
    return EmbeddingNetwork(empty.backbone, trained.head.cpu(), sizes, mean, std)


def rebuild(description: Mapping[str, Any], files: Mapping[str, Path]) -> "Network":
    """Makes a network as it was saved, its weights still to be loaded."""
    from models import backbone

    config = description["config"]
    return backbone.EmbeddingNetwork(
        backbone.rebuild(config["backbone"]),
        _head(**config["head"]),
        config["head"],
        description["mean"],
        description["std"],
    )


def _head(inputs: int, hidden: int, dropout: float, classes: int) -> "nn.Sequential":
    from torch import nn

    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )


def _check_config(name: str, config: Mapping[str, Any], shape: tuple[int, int, int]) -> None:
    if not isinstance(config.get("model_type"), str):
        raise ValueError(f"model.pretrained: {name} is a model without a type.")
    vision = config.get("vision_config")
    channels = (vision if isinstance(vision, Mapping) else config).get("num_channels", 3)
    if channels != shape[2]:
        raise ValueError(
            f"model.pretrained: {name} takes images of {channels} channels, "
            f"but images.channels is {shape[2]}."
        )
