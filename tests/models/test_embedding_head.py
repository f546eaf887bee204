"""The head on embeddings: each shape of backbone, what is refused, what is saved."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

import models
from models import backbone
from models.embedding_head import Settings
from models.network import FeatureExtractor, in_stored_units, normalise

SIZE = 32
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
SEEN = {"image_size": SIZE, "patch_size": 8}
HALF = (0.5, 0.5, 0.5)


def clip(network, pixels):
    return network.get_image_features(pixels).pooler_output


def class_token(network, pixels):
    return network.base_model(pixels).last_hidden_state[:, 0]


def pooled(network, pixels):
    return network.base_model(pixels).pooler_output.flatten(1)


TEXT = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
PARTS = {
    "vision_config": SIZES | SEEN | {"projection_dim": 12}, "text_config": SIZES | TEXT,
    "projection_dim": 12,
}  # fmt: skip
DINOV2 = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
# Each network, its config, what is the embedding, and the mean and deviation of its pixels.
BACKBONES = {
    "clip": ("CLIPModel", transformers.CLIPConfig(**PARTS), clip, *CLIP),
    "siglip": ("SiglipModel", transformers.SiglipConfig(**PARTS), clip, HALF, HALF),
    # Made for larger images than it gets; it interpolates its position embeddings itself.
    "dinov2": (
        "Dinov2Model", transformers.Dinov2Config(**DINOV2, image_size=56, patch_size=8), pooled,
        HALF, HALF,
    ),
    "vit": ("ViTModel", transformers.ViTConfig(**SIZES, **SEEN), class_token, HALF, HALF),
    # With a last layer, and so without a pooler.
    "classifier": (
        "ViTForImageClassification", transformers.ViTConfig(**SIZES, **SEEN), class_token, HALF,
        HALF,
    ),
    "resnet": (
        "ResNetForImageClassification", transformers.ResNetConfig(**RESNET), pooled, HALF, HALF,
    ),
}  # fmt: skip


def published(name: str, folder: Path) -> Path:
    """A backbone with random weights in half precision, as it is published."""
    kind, config, _, mean, std = BACKBONES[name]
    torch.manual_seed(0)
    network = getattr(transformers, kind)(config).train()
    if name == "resnet":
        network(torch.rand(8, 3, SIZE, SIZE))  # statistics of its batch norms
    network.to(torch.bfloat16).save_pretrained(folder)
    transformers.ViTImageProcessor(image_mean=mean, image_std=std).save_pretrained(folder)
    return folder


def fault(folder: Path, shape: tuple[int, int, int] = (SIZE, SIZE, 3)) -> str:
    """What is said before a run."""
    with pytest.raises(ValueError) as said:
        Settings(pretrained=str(folder)).check_network(shape, Path())
    return str(said.value)


@pytest.mark.parametrize("name", BACKBONES)
def test_an_embedding_is_what_transformers_says_and_what_is_saved_answers_as_the_head_on_it(
    name, tmp_path
):
    kind, _, says, mean, std = BACKBONES[name]
    folder = published(name, tmp_path / "published")
    images = torch.randint(0, 256, (5, SIZE, SIZE, 3), dtype=torch.uint8)
    network = backbone.load(str(folder), None)
    _, embeddings = FeatureExtractor(network).answer(images, "fp32")
    theirs = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = says(theirs, normalise(images, in_stored_units(mean), in_stored_units(std)))
    assert torch.equal(embeddings, expected)
    # In many checkpoints a ViT's pooler is missing, and would be random.
    assert not any("pooler" in key for key in network.state_dict())

    settings = Settings(pretrained=str(folder))
    settings.check_network((SIZE, SIZE, 3), Path())
    head = settings.build(tuple(embeddings.shape[1:]), 3)
    head(3 * embeddings)  # in training: changes the statistics of its batch norm
    whole = settings.complete(head.eval())
    about = {"family": "embedding_head", "settings": {}, "labels": "abc", "images": {}}
    models.save(whole, tmp_path, **about)
    shutil.rmtree(folder)
    loaded = models.load(tmp_path).module  # needs nothing but its folder
    with torch.inference_mode():
        expected = head(embeddings)
        assert torch.equal(loaded(images), expected)
        assert torch.equal(loaded(embeddings), expected)
    assert torch.equal(FeatureExtractor(loaded).answer(images, "fp32")[1], embeddings)
    parameters = [*network.backbone.parameters(), *loaded.backbone.parameters()]
    assert not any(weight.requires_grad for weight in parameters)
    loaded.train()
    assert not loaded.backbone.training and loaded.last_layer.training


def test_a_backbone_is_loaded_without_a_word(tmp_path, capfd):
    folder = published("vit", tmp_path)
    transformers.logging.enable_progress_bar()
    capfd.readouterr()
    backbone.load(str(folder), None)
    assert capfd.readouterr() == ("", "")


def test_a_head_is_linear_with_batch_norm_and_dropout():
    head = Settings(pretrained="any", hidden=7, dropout=0.25).build((12,), 3).last_layer
    first, last = nn.Linear(12, 7), nn.Linear(7, 3)
    expected = nn.Sequential(first, nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.25), last)
    assert str(head) == str(expected)


def test_weights_of_another_size_and_missing_ones_are_named(tmp_path):
    beit = transformers.BeitForMaskedImageModeling(transformers.BeitConfig(**SIZES, **SEEN))
    beit.save_pretrained(tmp_path / "beit")
    wider = transformers.ViTConfig(**SEEN | SIZES | {"intermediate_size": 33})
    wider.save_pretrained(published("vit", tmp_path / "vit"))
    for kind, lacking in (("beit", r"pooler\.layernorm"), ("vit", r"mlp\.fc1\.bias")):
        with pytest.raises(ValueError, match=rf"lack weights of its config: .*{lacking}"):
            backbone.load(str(tmp_path / kind), None)


@pytest.mark.parametrize("kind", ["bert", "yolos"])  # of text, and a detector
def test_a_network_that_gives_no_embedding_of_images_is_refused_in_one_line(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    assert fault(tmp_path).startswith(f"model.pretrained: {tmp_path} is a {kind}, which gives no")


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("clip", (40, 40, 3), "40 x 40 pixels and 3 channels (Input image size"),
        ("siglip", (SIZE, SIZE, 1), "32 x 32 pixels and 1 channels ("),
    ],
)
def test_images_that_do_not_fit_are_refused_in_one_line(tmp_path, name, shape, said):
    found = fault(published(name, tmp_path), shape)
    assert f"gives no embedding of images of {said}" in found
