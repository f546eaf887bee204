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

from pydantic import Field

from models.pretrained import (  # noqa: F401  # the interface of a family
    Name,
    Pretrained,
    pretrained_faults,
    pretrained_version,
    read_config,
)

if TYPE_CHECKING:
    from torch import nn

    from models.network import Network

# About the width of embeddings; it only decides the threads and the precision of the training.
WIDTH = 1024


class Settings(Pretrained):
    """The settings in `params.yaml` of a head on embeddings."""

    pretrained: Name = Field(
        description=(
            "The backbone: a model on the Hugging Face hub, `owner/name` or `owner/name@revision`, "
            "or a folder that holds one; a relative path is below the project."
        ),
    )
    hidden: Annotated[int, Field(ge=1, le=1 << 16)] = Field(
        default=256, description="Width of the head's hidden layer."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.3, description="After the hidden layer."
    )


def training_flops(settings: Settings, shape: tuple[int, int, int]) -> float:
    """The cost of a forward pass over one embedding: what is trained is the head."""
    return 2.0 * WIDTH * settings.hidden


def library_faults(settings: Settings, shape: tuple[int, int, int], root: Path) -> Iterator[str]:
    """Finds what is wrong with the backbone, if its configuration is on this machine.

    The network is tried without memory, which takes seconds with the import of torch.

    Args:
        settings: The settings of the network, with the version of the weights.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Yields:
        A sentence for each fault.
    """
    from models import backbone

    name, version = settings.pretrained, settings.pretrained_version
    try:
        if version and (config := read_config(name, version, root)):
            backbone.check(name, config, shape)
    except ValueError as error:
        yield str(error)


def build(settings: Settings, shape: tuple[int], classes: int) -> "Network":
    """Makes a new head, which takes embeddings; `complete` puts it on its backbone.

    Args:
        settings: The settings of the network.
        shape: The length of an embedding.
        classes: The number of classes.
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
        settings: The settings of the network.
        trained: The head that `build` made, after its training.

    Returns:
        The whole network, which takes images; it is on the CPU.

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
    return EmbeddingNetwork(empty.backbone, trained.last_layer.cpu(), sizes, mean, std)


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
