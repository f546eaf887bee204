"""Backbones: pretrained networks of `transformers` that give an embedding of an image.

- CLIP, MetaCLIP: the projected embedding, which is comparable with that of a text
- SigLIP: the output of the pooling head of its vision part
- ViT, DeiT, DINOv2 and others with a class token: this token after the last norm. A ViT's pooler is
  left out: in many checkpoints it was never trained.
- other classifiers of images (ResNet, ConvNeXt, Swin, BEiT): their pooled output

Weights that a checkpoint lacks are random, so a network whose embedding depends on some is refused.
"""

import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models import fine_tuned
from models.network import Network, config_of, inference

# The part for images of networks that have another one for text.
VISION = {
    "clip": "CLIPVisionModelWithProjection",
    "clip_vision_model": "CLIPVisionModelWithProjection",
    "metaclip_2": "MetaClip2VisionModelWithProjection",
    "siglip": "SiglipVisionModel",
    "siglip_vision_model": "SiglipVisionModel",
}
PROJECTED = ("CLIPVisionModelWithProjection", "MetaClip2VisionModelWithProjection")
# Their last norm is of all tokens, the first of which is that of the class.
CLASS_TOKEN = (
    "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "vit_msn",
)  # fmt: skip
# Give embeddings, but have no classifier in `transformers`.
NO_CLASSIFIER = ("dinov3_convnext", "dinov3_vit")


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

    @property
    def description(self) -> dict[str, Any]:
        """All that `rebuild` needs, except for the weights."""
        kind = type(self.model).__name__
        return {"class": kind, "config": config_of(self.model), "pooling": self.pooling}


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
        config = {"backbone": backbone.description if backbone else None, "head": dict(sizes)}
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
        embeddings: Tensor = self.backbone(self.normalised(images))
        return embeddings.float()


def load(
    name: str, version: str | None, shape: tuple[int, int, int] | None = None
) -> EmbeddingNetwork:
    """Loads a backbone in fp32, without a head.

    Args:
        name: The name of the network in the settings; a relative path starts in the working
            directory.
        version: The version of the weights, as `pretrained.find_version` returned it.
        shape: Height, width and channels of the images that it is tried on; its own if None.

    Returns:
        The backbone, in evaluation mode; its method `embed` gives the embeddings.

    Raises:
        ValueError: There is no such network, it gives no embedding of images, or its files lack
            weights.
        OSError: The hub cannot be reached.
    """
    from transformers import PreTrainedConfig

    with fine_tuned.loading(name, version) as where:
        published, _ = PreTrainedConfig.get_config_dict(**where)
        kind, pooling = _kind_of(name, published)
        model, loading_info = kind.from_pretrained(
            **where,
            **_options(kind, pooling),
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are refused by name, if the embedding needs them
            output_loading_info=True,
        )
        channels = _number(model.config, "num_channels", 3)
        side = _number(model.config, "image_size", 224)
        tried = _try(name, kind, pooling, model.config, shape or (side, side, channels))
        unused = {
            parameter for parameter, weight in tried.named_parameters() if weight.grad is None
        }
        lacking = {
            *loading_info["missing_keys"],
            *(parameter[0] for parameter in loading_info["mismatched_keys"]),
        } - unused
        if lacking:
            raise ValueError(
                f"model.pretrained: the files of {name} lack weights of its config that its "
                f"embedding depends on: {min(lacking)}, for example. Take a checkpoint with them."
            )
        mean, std = fine_tuned.follow_processor(where, model, channels)
    backbone = Backbone(model.requires_grad_(False), pooling)
    return EmbeddingNetwork(backbone, None, {}, mean, std).eval()


def rebuild(description: Mapping[str, Any]) -> Backbone:
    """Makes a backbone as it was described, its weights still to be loaded."""
    import transformers

    kind, pooling = getattr(transformers, description["class"]), description["pooling"]
    config = kind.config_class.from_dict(dict(description["config"]))
    with fine_tuned.quiet():
        model = kind(config, **_options(kind, pooling))
    return Backbone(model.requires_grad_(False), pooling)


def check(name: str, published: Mapping[str, Any], shape: tuple[int, int, int]) -> None:
    """Tries a backbone on images.

    Args:
        name: The name of the network in the settings.
        published: The published configuration of the network.
        shape: Height, width and channels of the images.

    Raises:
        ValueError: The backbone gives no embedding of such images.
    """
    kind, pooling = _kind_of(name, published)
    own = published.get("vision_config", published)
    try:
        config = kind.config_class.from_dict(dict(own))
    except Exception as error:  # each type of network has checks of its own
        raise ValueError(f"model.pretrained: {name}: {fine_tuned.first_line(error)}.") from error
    with fine_tuned.quiet():
        _try(name, kind, pooling, config, shape)


def _kind_of(name: str, config: Mapping[str, Any]) -> tuple[Any, str]:
    """The class of a published network, of `transformers`, and the `pooling` of its backbone.

    Raises:
        ValueError: The network gives no embedding of an image.
    """
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS,
        MODEL_MAPPING_NAMES as MODELS,
    )

    model_type = str(config.get("model_type"))
    if model_type in VISION:
        pooling = "image_embeds" if VISION[model_type] in PROJECTED else "pooler_output"
        return getattr(transformers, VISION[model_type]), pooling
    if model_type not in {*CLASSIFIERS, *NO_CLASSIFIER} or model_type not in MODELS:
        raise ValueError(
            f"model.pretrained: {name} is a {model_type}, which gives no embedding of an image. "
            "Take a CLIP, SigLIP, DINOv2 or ViT, for example."
        )
    pooling = "class_token" if model_type in CLASS_TOKEN else "pooler_output"
    return getattr(transformers, MODELS[model_type]), pooling


def _options(kind: Any, pooling: str) -> dict[str, bool]:
    """What a class takes beside the config: no pooler where none is used."""
    parameters = inspect.signature(kind.__init__).parameters
    leave_out = pooling == "class_token" and "add_pooling_layer" in parameters
    return {"add_pooling_layer": False} if leave_out else {}


def _try(name: str, kind: Any, pooling: str, config: Any, shape: tuple[int, int, int]) -> nn.Module:
    """A backbone that has embedded images without memory, with gradients; see `fine_tuned`."""
    backbone: Backbone = fine_tuned.try_without_memory(
        lambda: Backbone(kind(config, **_options(kind, pooling)), pooling).eval(),
        shape,
        f"model.pretrained: {name} gives no embedding of",
    )
    return backbone.model


def _number(config: Any, name: str, default: int) -> int:
    """A number of a config; the first of several."""
    value = getattr(config, name, default)
    return int(value if isinstance(value, int) else value[0])
