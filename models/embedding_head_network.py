"""A backbone of `transformers`, which stays as it is, and a head on its embeddings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from models.network import Network


class EmbeddingClassifier(nn.Module):
    """A backbone and a head: takes images, or their embeddings.

    Attributes:
        backbone: A pretrained network of `transformers`, which is never trained; or an identity,
            where there are embeddings only.
        head: Takes embeddings; or an identity, where these are what is wanted.
    """

    base_model_prefix = "backbone"  # as classifiers of `transformers` have it

    def __init__(self, backbone: nn.Module, pooling: str, head: nn.Module) -> None:
        """Joins a backbone and a head.

        Args:
            backbone: Takes pixels.
            pooling: Which of its outputs is the embedding: `image_embeds`, `pooler_output` or
                `class_token`.
            head: Takes embeddings.
        """
        super().__init__()
        self.backbone, self.pooling, self.head = backbone, pooling, head

    def forward(self, images: Tensor) -> Tensor:
        """Classifies images.

        Args:
            images: float32 (N, C, H, W), normalised; or their embeddings, float32 (N, D).

        Returns:
            Logits (N, classes).
        """
        embeddings = images if images.ndim == 2 else self.embed(images)
        logits: Tensor = self.head(embeddings)
        return logits

    def embed(self, images: Tensor) -> Tensor:
        """Embeds images.

        Args:
            images: float32 (N, C, H, W), normalised.

        Returns:
            float32 (N, D).
        """
        output = self.backbone(images)
        if self.pooling == "class_token":
            embedding: Tensor = output.last_hidden_state[:, 0]
        else:
            embedding = output[self.pooling]
        return embedding.flatten(1).float()  # convolutions leave (N, D, 1, 1)

    def train(self, mode: bool = True) -> "EmbeddingClassifier":
        """Changes the mode of the head; the backbone stays in evaluation mode."""
        super().train(mode)
        self.backbone.eval()
        return self


def make_head(inputs: int, hidden: int, dropout: float, classes: int) -> nn.Sequential:
    """A new head."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, classes),
    )


def options(pooling: str) -> dict[str, bool]:
    """What the class of a backbone takes beside the config: no pooler where none is used."""
    return {"add_pooling_layer": False} if pooling == "class_token" else {}


def rebuild(description: Mapping[str, Any], files: Mapping[str, Path]) -> Network:
    """Makes a network as it was saved, its weights still to be loaded."""
    import transformers

    config = description["config"]
    described, pooling = config["backbone"], config["backbone"]["pooling"]
    kind = getattr(transformers, described["class"])
    own_config = kind.config_class.from_dict(dict(described["config"]))
    backbone = kind(own_config, **options(pooling)).requires_grad_(False)
    classifier = EmbeddingClassifier(backbone, pooling, make_head(**config["head"]))
    return Network(classifier, config, description["mean"], description["std"])
