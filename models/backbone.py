"""Backbones: pretrained networks of `transformers` that give an embedding of an image.

- CLIP, MetaCLIP: the projected embedding, which is comparable with that of a text
- SigLIP: the output of the pooling head of its vision part
- ViT, DeiT and others with a class token and no use of their pooler: this token after the last
  norm. In many checkpoints the pooler was never trained.
- other classifiers of images (DINOv2, ResNet, ConvNeXt, Swin, BEiT): their pooled output

Weights that a checkpoint lacks would be random, so such a network is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models import pretrained
from models.embedding_head_network import Backbone, EmbeddingNetwork, options
from models.family import Shape

# The part for images of networks that have another one for text, and its output.
VISION = {
    "clip": ("CLIPVisionModelWithProjection", "image_embeds"),
    "clip_vision_model": ("CLIPVisionModelWithProjection", "image_embeds"),
    "metaclip_2": ("MetaClip2VisionModelWithProjection", "image_embeds"),
    "siglip": ("SiglipVisionModel", "pooler_output"),
    "siglip_vision_model": ("SiglipVisionModel", "pooler_output"),
}
# Their last norm is of all tokens, the first of which is that of the class.
CLASS_TOKEN = ("deit", "vit", "vit_msn")
# Give embeddings, but have no classifier in `transformers`.
NO_CLASSIFIER = ("dinov3_convnext", "dinov3_vit")


def load(name: str, version: str | None) -> EmbeddingNetwork:
    """Loads a backbone in fp32, without a head.

    Args:
        name: The name of the network in the settings; a relative path starts in the working
            directory.
        version: The version of the weights, as `pretrained.find_version` returned it.

    Returns:
        The backbone, in evaluation mode; its method `embed` gives the embeddings.

    Raises:
        ValueError: There is no such network, it gives no embedding of images, or its files lack
            weights.
        OSError: The hub cannot be reached.
    """
    kind, pooling = _kind_of(name, pretrained.read_config(name, version, Path()))
    model, lacking = pretrained.load(kind, name, version, **options(kind, pooling))
    if lacking:
        raise ValueError(
            f"model.pretrained: the files of {name} lack weights of its config: {min(lacking)}, "
            "for example. Take a checkpoint with them."
        )
    channels = getattr(model.config, "num_channels", 3)
    mean, std = pretrained.follow_processor(pretrained.where(name, version), model, channels)
    backbone = Backbone(model.requires_grad_(False), pooling)
    return EmbeddingNetwork(backbone, None, {}, mean, std).eval()


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
    pretrained.quiet()
    published = pretrained.read_config(name, version, root)
    pretrained.check_channels(name, published, shape[2])
    kind, pooling = _kind_of(name, published)
    own = dict(published.get("vision_config", published))
    pretrained.try_without_memory(
        lambda: Backbone(kind(kind.config_class.from_dict(own), **options(kind, pooling)), pooling),
        shape,
        f"model.pretrained: {name} gives no embedding of",
    )


def _kind_of(name: str, published: Mapping[str, Any]) -> tuple[Any, str]:
    """The class of a published network, of `transformers`, and the `pooling` of its backbone.

    Raises:
        ValueError: The network gives no embedding of an image.
    """
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS,
        MODEL_MAPPING_NAMES as MODELS,
    )

    model_type = published["model_type"]
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
