"""Small stand-ins for the networks that workloads download, in the hub's own layout."""

from pathlib import Path


def write_vit(folder: Path, size: int) -> Path:
    """A pretrained ViT without a head, as `google/vit-base-patch16-224-in21k` is one."""
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    config = ViTConfig(
        image_size=size, patch_size=8, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32,
    )  # fmt: skip
    ViTModel(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": size, "width": size}).save_pretrained(folder)
    return folder


def write_clip(folder: Path, size: int) -> Path:
    """A CLIP with both its parts, as `openai/clip-vit-base-patch32` has them; random weights."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    sizes = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "projection_dim": 12,
    }  # fmt: skip
    text = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = CLIPConfig(
        vision_config=sizes | {"image_size": size, "patch_size": 8},
        text_config=sizes | text,
        projection_dim=12,
    )
    CLIPModel(config).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": size}).save_pretrained(folder)
    return folder
