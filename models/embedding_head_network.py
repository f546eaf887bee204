"""A backbone of `transformers`, which stays as it is, and a head on its embeddings."""

import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from models.network import Network, config_of, inference, normalise


class Backbone(nn.Module):
    """A pretrained network that gives embeddings; it is never trained.

    Attributes:
        model: The network of `transformers`.
        pooling: Which of its outputs is the embedding: `image_embeds`, `pooler_output` or
            `class_token`.
    """

    def __init__(self, model: nn.Module, pooling: str) -> None:
        """Wraps a network of `transformers`."""
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, images: Tensor) -> Tensor:
        """Embeds images.

        Args:
            images: float32 (N, C, H, W), normalised.

        Returns:
            (N, D).
        """
        output = self.model(images)
        if self.pooling == "class_token":
            embedding: Tensor = output.last_hidden_state[:, 0]
        else:
            embedding = output[self.pooling]
        return embedding.flatten(1)  # convolutions leave (N, D, 1, 1)

    def train(self, mode: bool = True) -> "Backbone":
        """Stays in evaluation mode."""
        return super().train(False)


class EmbeddingNetwork(Network):
    """A backbone and a head: takes images, or their embeddings.

    Without a backbone it takes embeddings only, and without a head it gives them.
    """

    def __init__(
        self,
        backbone: Backbone | None,
        head: nn.Module | None,
        sizes: Mapping[str, Any],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        """Joins a backbone and a head.

        Args:
            backbone: Takes pixels.
            head: Takes embeddings.
            sizes: All that rebuilds the head, except for its weights; JSON-able.
            mean: The mean of each channel; subtracted from pixels in [0, 1].
            std: The standard deviation of each channel; the difference is divided by it.
        """
        parts = OrderedDict(backbone=backbone or nn.Identity(), head=head or nn.Identity())
        described = backbone and {
            "class": type(backbone.model).__name__,
            "config": config_of(backbone.model),
            "pooling": backbone.pooling,
        }
        config = {"backbone": described, "head": dict(sizes)}
        super().__init__(nn.Sequential(parts), config, mean, std)

    @property
    def last_layer(self) -> nn.Module:
        """The head, which takes embeddings."""
        return self.classifier.get_submodule("head")

    @property
    def of_transformers(self) -> nn.Module | None:
        """The network of `transformers` that the backbone wraps."""
        return getattr(self.backbone, "model", None)

    def forward(self, images: Tensor) -> Tensor:
        """Classifies images.

        Args:
            images: uint8 (N, H, W, C), or their embeddings, float32 (N, D).

        Returns:
            Logits, float32 (N, classes).
        """
        embeddings = images.float() if images.ndim == 2 else self._embeddings(images)
        logits: Tensor = self.last_layer(embeddings)
        return logits.float()

    def embed(self, images: Tensor, precision: str) -> Tensor:
        """Embeds images, as serving does before the head.

        Args:
            images: uint8 (N, H, W, C), on the network's device.
            precision: `fp32` or `bf16`, of the matrix products.

        Returns:
            float32 (N, D).
        """
        with inference(images.device, precision):
            return self._embeddings(images)

    def _embeddings(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.backbone(normalise(images, self.mean, self.std))
        return embeddings.float()


def make_head(inputs: int, hidden: int, dropout: float, classes: int) -> nn.Sequential:
    """A new head."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )


def options(kind: Any, pooling: str) -> dict[str, bool]:
    """What a class takes beside the config: no pooler where none is used."""
    parameters = inspect.signature(kind.__init__).parameters
    leave_out = pooling == "class_token" and "add_pooling_layer" in parameters
    return {"add_pooling_layer": False} if leave_out else {}


def rebuild(description: Mapping[str, Any], files: Mapping[str, Path]) -> EmbeddingNetwork:
    """Makes a network as it was saved, its weights still to be loaded."""
    import transformers

    described, sizes = (description["config"][part] for part in ("backbone", "head"))
    kind, pooling = getattr(transformers, described["class"]), described["pooling"]
    config = kind.config_class.from_dict(dict(described["config"]))
    model = kind(config, **options(kind, pooling)).requires_grad_(False)
    mean, std = description["mean"], description["std"]
    return EmbeddingNetwork(Backbone(model, pooling), make_head(**sizes), sizes, mean, std)
