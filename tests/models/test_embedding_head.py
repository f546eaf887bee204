"""The head on embeddings: each shape of backbone, what is refused, what is saved."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

import models
from models import backbone, embedding_head
from models.embedding_head import Settings
from models.network import Observed, in_stored_units, normalise
from tests.hub import write_clip, write_vit

SIZE = 32
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
SEEN = {"image_size": SIZE, "patch_size": 8}
HALF = (0.5, 0.5, 0.5)


def write_siglip(folder: Path) -> None:
    text = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = transformers.SiglipConfig(vision_config=SIZES | SEEN, text_config=SIZES | text)
    transformers.SiglipModel(config).save_pretrained(folder)


def write_dinov2(folder: Path) -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
    # Made for larger images than it gets; it interpolates its position embeddings itself.
    config = transformers.Dinov2Config(**sizes, image_size=56, patch_size=8)
    transformers.Dinov2Model(config).save_pretrained(folder)


def write_resnet(folder: Path) -> None:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1]}
    config = transformers.ResNetConfig(**sizes, layer_type="basic")
    network = transformers.ResNetForImageClassification(config).train()
    network(torch.rand(8, 3, SIZE, SIZE))  # statistics of its batch norms
    network.save_pretrained(folder)


def write_classifier(folder: Path) -> None:
    """A ViT with a last layer, and so without a pooler."""
    config = transformers.ViTConfig(**SIZES, **SEEN)
    transformers.ViTForImageClassification(config).save_pretrained(folder)


def clip_says(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    return transformers.CLIPModel.from_pretrained(folder).get_image_features(pixels).pooler_output


def siglip_says(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    return transformers.SiglipModel.from_pretrained(folder).get_image_features(pixels).pooler_output


def dinov2_says(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    return transformers.Dinov2Model.from_pretrained(folder)(pixels).pooler_output


def vit_says(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    return transformers.ViTModel.from_pretrained(folder)(pixels).last_hidden_state[:, 0]


def classifier_says(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    network = transformers.ViTForImageClassification.from_pretrained(folder)
    return network.vit(pixels).last_hidden_state[:, 0]


def resnet_says(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    network = transformers.ResNetForImageClassification.from_pretrained(folder).eval()
    return network.resnet(pixels).pooler_output.flatten(1)


CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BACKBONES = {
    "clip": (lambda folder: write_clip(folder, SIZE), clip_says, *CLIP, 12),
    "siglip": (write_siglip, siglip_says, HALF, HALF, 16),
    "dinov2": (write_dinov2, dinov2_says, HALF, HALF, 16),
    "vit": (lambda folder: write_vit(folder, SIZE), vit_says, HALF, HALF, 16),
    "vit with a last layer": (write_classifier, classifier_says, HALF, HALF, 16),
    "resnet": (write_resnet, resnet_says, HALF, HALF, 12),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each backbone, as it is published."""
    root = tmp_path_factory.mktemp("backbones")
    torch.manual_seed(0)
    for name, (write, *_) in BACKBONES.items():
        write(root / name)
    return root


@pytest.fixture(scope="module")
def images():
    return torch.randint(0, 256, (5, SIZE, SIZE, 3), dtype=torch.uint8)


def declared(folder: Path) -> Settings:
    version = embedding_head.pretrained_version(Settings(pretrained=str(folder)), Path())
    return Settings(pretrained=str(folder), pretrained_version=version)


def faults(folder: Path, shape: tuple[int, int, int] = (SIZE, SIZE, 3)) -> list[str]:
    settings = declared(folder)
    quick = embedding_head.pretrained_faults(settings, shape, Path())
    return [*quick, *embedding_head.library_faults(settings, shape, Path())]


@pytest.mark.parametrize("name", BACKBONES)
def test_an_embedding_is_what_transformers_says_to_the_bit(folders, images, name):
    _, says, mean, std, width = BACKBONES[name]
    network = backbone.load(str(folders / name), None)
    found = network.embed(images, "fp32")
    with torch.inference_mode():
        expected = says(
            folders / name, normalise(images, in_stored_units(mean), in_stored_units(std))
        )
    assert found.shape == (5, width)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert faults(folders / name) == []


@pytest.mark.parametrize("name", BACKBONES)
def test_what_is_saved_takes_images_and_answers_as_the_head_on_embeddings(
    folders, images, name, tmp_path
):
    settings = declared(folders / name).model_dump()
    embeddings = backbone.load(str(folders / name), None).embed(images, "fp32")
    head = models.build("embedding_head", settings, tuple(embeddings.shape[1:]), 3)
    head(3 * embeddings)  # in training: changes the statistics of its batch norm
    whole = models.complete("embedding_head", settings, head.eval())
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
    _, features = Observed(loaded).answer(images, "fp32")
    assert torch.equal(features, embeddings)
    assert not any(weight.requires_grad for weight in loaded.backbone.parameters())


def test_the_head_is_as_its_settings_say():
    settings = {"pretrained": "owner/name", "hidden": 7, "dropout": 0.25}
    head = models.build("embedding_head", settings, (12,), 3)
    kinds = [type(layer).__name__ for layer in head.last_layer]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Dropout", "Linear"]
    assert [tuple(each.shape) for each in head.parameters()] == [
        (7, 12),
        (7,),
        (7,),
        (7,),
        (3, 7),
        (3,),
    ]
    assert head.last_layer[3].p == 0.25


def test_a_pooler_that_is_not_in_the_file_is_never_used(folders, images):
    """`AutoModel` would give a random one, another each time, and its output as `pooler_output`."""
    folder = folders / "vit with a last layer"
    with torch.inference_mode():
        random = [transformers.AutoModel.from_pretrained(folder) for _ in range(2)]
        pixels = normalise(images, in_stored_units(HALF), in_stored_units(HALF))
        one, two = (network(pixels).pooler_output for network in random)
    assert not torch.equal(one, two)  # the trap
    found = [backbone.load(str(folder), None).embed(images, "fp32") for _ in range(2)]
    assert torch.equal(*found)
    assert not any("pooler" in name for name in backbone.load(str(folder), None).state_dict())


def test_weights_of_another_size_are_named(folders, tmp_path):
    shutil.copytree(folders / "vit", tmp_path / "vit")
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    config["intermediate_size"] += 1
    (tmp_path / "vit" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"lack weights of its config .*mlp\.fc1\.bias"):
        backbone.load(str(tmp_path / "vit"), None)


def test_a_network_whose_embedding_depends_on_missing_weights_is_refused(tmp_path):
    config = transformers.BeitConfig(**SIZES, **SEEN)
    transformers.BeitForMaskedImageModeling(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lack weights .* pooler\.layernorm"):
        backbone.load(str(tmp_path), None)


def test_a_network_that_gives_no_embedding_of_images_is_refused_in_one_line(tmp_path):
    text = transformers.BertConfig(**SIZES, vocab_size=50)
    transformers.BertModel(text).save_pretrained(tmp_path / "text")
    detector = transformers.YolosConfig(**SIZES, image_size=[SIZE, SIZE], patch_size=8)
    transformers.YolosModel(detector).save_pretrained(tmp_path / "detector")
    for name, kind in (("text", "bert"), ("detector", "yolos")):
        [said] = faults(tmp_path / name)
        assert said.startswith(f"model.pretrained: {tmp_path / name} is a {kind}, which gives no")
        with pytest.raises(ValueError, match=f"is a {kind}, which gives no embedding"):
            backbone.load(str(tmp_path / name), None)


def test_images_that_do_not_fit_are_refused_in_one_line(folders):
    [said] = faults(folders / "clip", (40, 40, 3))
    assert "gives no embedding of images of 40 x 40 pixels and 3 channels (Input image size" in said
    with pytest.raises(ValueError, match="40 x 40"):
        backbone.load(str(folders / "clip"), None, (40, 40, 3))
    said = faults(folders / "siglip", (SIZE, SIZE, 1))[0]
    assert "takes images of 3 channels, but images.channels is 1" in said


def test_in_bf16_it_says_nearly_the_same(folders, images):
    network = backbone.load(str(folders / "clip"), None)
    exact = network.embed(images, "fp32")
    assert network.prefer_attention("cpu", "bf16") == "eager"
    coarse = network.embed(images, "bf16")
    assert coarse.dtype == torch.float32
    assert not torch.equal(coarse, exact)
    assert torch.allclose(coarse, exact, atol=0.05)
