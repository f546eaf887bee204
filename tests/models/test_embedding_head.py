"""The head on embeddings: each shape of backbone, what is refused, what is saved."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

import models
from models import backbone
from models.embedding_head import Settings
from models.network import FeatureExtractor, in_stored_units, normalise
from tests.hub import write_clip, write_vit

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


def siglip_config():
    text = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    return transformers.SiglipConfig(vision_config=SIZES | SEEN, text_config=SIZES | text)


DINOV2 = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
# Each network, its config, what is the embedding, its pixels, and the embedding's length.
BACKBONES = {
    "clip": ("CLIPModel", None, clip, *CLIP, 12),
    "siglip": ("SiglipModel", siglip_config(), clip, HALF, HALF, 16),
    # Made for larger images than it gets; it interpolates its position embeddings itself.
    "dinov2": (
        "Dinov2Model", transformers.Dinov2Config(**DINOV2, image_size=56, patch_size=8), pooled,
        HALF, HALF, 16,
    ),
    "vit": ("ViTModel", None, class_token, HALF, HALF, 16),
    # With a last layer, and so without a pooler.
    "classifier": (
        "ViTForImageClassification", transformers.ViTConfig(**SIZES, **SEEN), class_token, HALF,
        HALF, 16,
    ),
    "resnet": (
        "ResNetForImageClassification", transformers.ResNetConfig(**RESNET), pooled, HALF, HALF, 12,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each backbone, with random weights, as it is published."""
    root = tmp_path_factory.mktemp("backbones")
    torch.manual_seed(0)
    write_clip(root / "clip", SIZE)
    write_vit(root / "vit", SIZE)
    for name, (kind, config, *_) in BACKBONES.items():
        if config is not None:
            network = getattr(transformers, kind)(config).train()
            if name == "resnet":
                network(torch.rand(8, 3, SIZE, SIZE))  # statistics of its batch norms
            network.save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def images():
    return torch.randint(0, 256, (5, SIZE, SIZE, 3), dtype=torch.uint8)


def declared(folder: Path) -> Settings:
    version = Settings(pretrained=str(folder)).find_version(Path())
    return Settings(pretrained=str(folder), pretrained_version=version)


def fault(folder: Path, shape: tuple[int, int, int] = (SIZE, SIZE, 3)) -> str | None:
    """What is said before a run."""
    settings = declared(folder)
    try:
        settings.check_network(shape, Path())
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", BACKBONES)
def test_an_embedding_is_what_transformers_says_and_what_is_saved_answers_as_the_head_on_it(
    folders, images, name, tmp_path
):
    kind, _, says, mean, std, width = BACKBONES[name]
    network = backbone.load(str(folders / name), None)
    _, embeddings = FeatureExtractor(network).answer(images, "fp32")
    theirs = getattr(transformers, kind).from_pretrained(folders / name).eval()
    with torch.inference_mode():
        expected = says(theirs, normalise(images, in_stored_units(mean), in_stored_units(std)))
    assert embeddings.shape == (5, width)
    assert torch.equal(embeddings, expected)
    assert fault(folders / name) is None
    # In many checkpoints a ViT's pooler is missing, and would be random.
    assert not any("pooler" in key for key in network.state_dict())

    settings = declared(folders / name).model_dump()
    head = models.build("embedding_head", settings, (width,), 3)
    head(3 * embeddings)  # in training: changes the statistics of its batch norm
    whole = models.parse_settings("embedding_head", settings).complete(head.eval())
    about = {"labels": "abc", "images": {"size": SIZE, "channels": 3, "resize": "crop"}}
    models.save(whole, tmp_path, family="embedding_head", settings=settings, **about)
    (folders / name).rename(folders / "elsewhere")
    try:
        loaded = models.load(tmp_path).module  # needs nothing but its folder
    finally:
        (folders / "elsewhere").rename(folders / name)
    with torch.inference_mode():
        expected = head(embeddings)
        assert torch.equal(loaded(images), expected)
        assert torch.equal(loaded(embeddings), expected)
    assert torch.equal(FeatureExtractor(loaded).answer(images, "fp32")[1], embeddings)
    assert not any(weight.requires_grad for weight in loaded.backbone.parameters())


def test_a_head_is_linear_with_batch_norm_and_dropout():
    settings = {"pretrained": "any", "hidden": 7, "dropout": 0.25}
    head = models.build("embedding_head", settings, (12,), 3).last_layer
    kinds = [type(layer).__name__ for layer in head]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear"]
    assert [tuple(head[n].weight.shape) for n in (0, 1, 4)] == [(7, 12), (7,), (3, 7)]
    assert head[3].p == 0.25


def test_weights_of_another_size_and_missing_ones_are_named(folders, tmp_path):
    beit = transformers.BeitForMaskedImageModeling(transformers.BeitConfig(**SIZES, **SEEN))
    beit.save_pretrained(tmp_path / "beit")
    with pytest.raises(ValueError, match=r"lack weights .* pooler\.layernorm"):
        backbone.load(str(tmp_path / "beit"), None)
    shutil.copytree(folders / "vit", tmp_path / "vit")
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    config["intermediate_size"] += 1
    (tmp_path / "vit" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"lack weights of its config: .*mlp\.fc1\.bias"):
        backbone.load(str(tmp_path / "vit"), None)


def test_a_network_that_gives_no_embedding_of_images_is_refused_in_one_line(tmp_path):
    for kind in ("bert", "yolos"):  # of text, and a detector
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        said = fault(tmp_path)
        assert said.startswith(f"model.pretrained: {tmp_path} is a {kind}, which gives no")
        with pytest.raises(ValueError, match=f"is a {kind}, which gives no embedding"):
            backbone.load(str(tmp_path), None)


def test_images_that_do_not_fit_are_refused_in_one_line(folders):
    said = fault(folders / "clip", (40, 40, 3))
    assert "gives no embedding of images of 40 x 40 pixels and 3 channels (Input image size" in said
    said = fault(folders / "siglip", (SIZE, SIZE, 1))
    assert "gives no embedding of images of 32 x 32 pixels and 1 channels (" in said
