"""Backbones: pretrained networks of `transformers` that give an embedding of an image.

- CLIP, MetaCLIP: the projected embedding, which is comparable with that of a text
- SigLIP: the output of the pooling head of its vision part
- ViT, DeiT: the token of the class after the last norm. Their pooler is left out: in many
  checkpoints it was never trained.
- other classifiers of images (DINOv2, ResNet, ConvNeXt, Swin, BEiT): their pooled output

Weights that a checkpoint lacks would be random, so such a network is refused.
"""

from pathlib import Path
from typing import Any

from torch import nn

from models import pretrained
from models.embedding_head_network import EmbeddingClassifier, options
from models.family import Shape
from models.network import Network, config_of

# The part for images of networks that have another one for text, and its output.
VISION = {
    "clip": ("CLIPVisionModelWithProjection", "image_embeds"),
    "clip_vision_model": ("CLIPVisionModelWithProjection", "image_embeds"),
    "metaclip_2": ("MetaClip2VisionModelWithProjection", "image_embeds"),
    "siglip": ("SiglipVisionModel", "pooler_output"),
    "siglip_vision_model": ("SiglipVisionModel", "pooler_output"),
}
# Their last norm is of all tokens, the first of which is that of the class.
CLASS_TOKEN = ("deit", "vit")
# Give embeddings, but have no classifier in `transformers`.
NO_CLASSIFIER = ("dinov3_convnext", "dinov3_vit")


def load(name: str, version: str | None) -> Network:
    """Loads a backbone in fp32, with an identity in the place of the head.

    Args:
        name: The name of the network in the settings; a relative path starts in the working
            directory.
        version: The version of the weights, as `pretrained.find_version` returned it.

    Returns:
        The backbone, in evaluation mode; its features, as `FeatureExtractor` gives them, are
        embeddings.

    Raises:
        ValueError: There is no such network, it gives no embedding of images, or its files lack
            weights.
        OSError: The hub cannot be reached.
    """
    kind, pooling = _kind_of(name, pretrained.read_config(name, version, Path()))
    model, lacking, mean, std = pretrained.load(kind, name, version, **options(pooling))
    if lacking:
        raise ValueError(
            f"model.pretrained: the files of {name} lack weights of its config: {min(lacking)}, "
            "for example. Take a checkpoint with them."
        )
    classifier = EmbeddingClassifier(model.requires_grad_(False), pooling, nn.Identity())
    described = {"class": kind.__name__, "config": config_of(model), "pooling": pooling}
    return Network(classifier, {"backbone": described}, mean, std).eval()


def check(name: str, version: str | None, shape: Shape, root: Path) -> None:
    """Tries a backbone on images, with tensors that have shapes but no values.

    Args:
        name: The name of the network in the settings.
        version: The version of the weights, as `pretrained.find_version` returned it.
        shape: Height, width and channels of the images.
        root: Where a relative path starts.

    Raises:
        ValueError: The backbone gives no embedding of such images.
        OSError: The hub cannot be reached.
    """
    config = pretrained.read_config(name, version, root)
    kind, pooling = _kind_of(name, config)
    own = getattr(config, "vision_config", config)
    pretrained.try_on_meta(
        lambda: EmbeddingClassifier(kind(own, **options(pooling)), pooling, nn.Identity()),
        shape,
        f"model.pretrained: {name} gives no embedding of",
    )


def _kind_of(name: str, config: Any) -> tuple[Any, str]:
    """The class of a published network, of `transformers`, and which output is the embedding.

    Raises:
        ValueError: The network gives no embedding of an image.
    """
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS,
        MODEL_MAPPING_NAMES as MODELS,
    )

    model_type = config.model_type
    if model_type in VISION:
        kind, pooling = VISION[model_type]
        return getattr(transformers, kind), pooling
    if model_type not in {*CLASSIFIERS, *NO_CLASSIFIER} or model_type not in MODELS:
        raise ValueError(
            f"model.pretrained: {name} is a {model_type}, which gives no embedding of an image. "
            "Take a CLIP, SigLIP, DINOv2 or ViT, for example."
        )
    pooling = "class_token" if model_type in CLASS_TOKEN else "pooler_output"
    return getattr(transformers, MODELS[model_type]), pooling
