"""Every kind of image classifier: tiny networks with random weights, nothing from a hub."""

import json
import re
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    CLIPTextConfig,
    CLIPTextModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

import models
from models.auto import Settings
from models.network import FeatureExtractor, normalise

ROOT = Path(__file__).parents[2]
PATCHES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8}
CONFIGS = {
    "vit": PATCHES | {"intermediate_size": 32},
    "dinov2": PATCHES | {"mlp_ratio": 2},
    "swin": {
        "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4, "patch_size": 2,
    },
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "resnet": {
        "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic",
    },
    "mobilenet_v2": {
        "depth_multiplier": 0.1, "finegrained_output": True, "classifier_dropout_prob": 0.0,
    },
    "clip": {"vision_config": PATCHES | {"intermediate_size": 32}},
}  # fmt: skip
SHAPE, LARGER = (32, 32, 3), (48, 48, 3)
# What is not trained of a network that gets larger images than it was made for.
IDLE = {"dinov2": {"mask_token", "position_embeddings"}, "swin": {"relative_position_bias_table"}}


def pixels(count=6, shape=SHAPE):
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=random)


def written(kind):
    return Settings(config={"model_type": kind} | CONFIGS[kind])


def made(settings, shape=SHAPE, classes=3, seed=0):
    torch.manual_seed(seed)
    return settings.build(shape, classes)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """So small networks only wait for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=CONFIGS)
def published(request, tmp_path_factory):
    """A kind, such a network with random weights, and a folder that holds it."""
    network = made(written(request.param))
    folder = tmp_path_factory.mktemp(request.param)
    network.classifier.save_pretrained(folder)
    return request.param, network.eval(), folder


def save(network, folder, labels, settings):
    models.save(network, folder, family="auto", settings=settings, labels=labels, images={})


@torch.inference_mode()
def answers(network, images):
    return network(images)


def test_a_network_from_a_config_is_loaded_as_it_was_saved(published, tmp_path):
    kind, network, _ = published
    logits = answers(network, pixels())
    assert logits.shape == (6, 3) and logits.dtype == torch.float32
    probabilities, features = FeatureExtractor(network).answer(pixels(), "fp32")
    assert features.shape[0] == 6 and features.ndim == 2 and features.dtype == torch.float32
    with torch.inference_mode():
        assert torch.allclose(probabilities, torch.softmax(network.last_layer(features), 1))
    save(network, tmp_path, "abc", written(kind).model_dump())
    assert torch.equal(answers(models.load(tmp_path).module, pixels()), logits)


def test_the_last_layer_is_new_by_the_seed_and_the_rest_is_pretrained(published):
    before = published[1].state_dict()
    settings = Settings(pretrained=str(published[2]))
    after, again = (made(settings, seed=1).state_dict() for _ in range(2))
    assert before.keys() == after.keys() == again.keys()
    assert all(torch.equal(each, again[name]) for name, each in after.items())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.endswith("weight") for name in changed)
    assert all(name.startswith("classifier.classifier.") for name in changed)


def test_images_of_another_size_and_classes_of_another_number(published, tmp_path):
    kind, _, folder = published
    settings = Settings(pretrained=str(folder))
    if kind in ("vit", "clip"):
        assert f"this {kind} cannot take images of 48 x 48 pixels" in refusal(settings, LARGER)
        return
    larger = made(settings, LARGER, classes=5).eval()
    images = pixels(2, LARGER)
    logits = answers(larger, images)
    assert logits.shape == (2, 5)
    save(larger, tmp_path, "abcde", {})
    assert torch.equal(answers(models.load(tmp_path).module, images), logits)
    assert str(folder) not in (tmp_path / models.MODEL).read_text()
    idle = [name for name, each in larger.named_parameters() if not each.requires_grad]
    assert {name.rpartition(".")[2] for name in idle} == IDLE.get(kind, set())


def refusal(settings, shape=SHAPE, root=ROOT):
    """What is said before a run; `build` says the same."""
    with pytest.raises(ValueError) as before:
        settings.check_network(shape, root)
    with pytest.raises(ValueError) as later:
        settings.build(shape, 3)
    assert str(before.value) == str(later.value)
    return str(later.value)


def test_the_images_decide_the_channels():
    network = made(written("vit"), (32, 32, 1)).eval()
    assert answers(network, pixels(2, (32, 32, 1))).shape == (2, 3)


@pytest.mark.parametrize(
    ("kind", "device", "precision", "chosen"),
    [
        ("vit", "cpu", "fp32", "sdpa"),
        ("vit", "cpu", "bf16", "eager"),
        ("vit", "cuda", "bf16", "sdpa"),
        ("resnet", "cpu", "fp32", None),
    ],
)
def test_the_attention_that_trains_fastest_is_chosen(kind, device, precision, chosen):
    assert made(written(kind)).prefer_attention(device, precision) == chosen


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "resnett"}, "transformers has no image classifier 'resnett'."),
        ({"model_type": "bert"}, "model.config: transformers has no image classifier 'bert'"),
        ({"model_type": "resnet", "depth": [1]}, "model.config.depth: resnet has no such"),
        ({"model_type": "vit", "image_size": 8}, "config.image_size: vit has no such parameter"),
        ({"model_type": "resnet", "depths": "two"}, "model.config: Validation error for field"),
        ({"model_type": "resnet", "dtype": "bfloat16"}, "model.config.dtype: resnet has no such"),
        (CONFIGS["swin"] | {"model_type": "swin", "window_size": 7, "depths": [1] * 4,
         "num_heads": [1] * 4}, "this swin cannot take images of"),
        ({"model_type": "imagegpt", "n_embd": 8, "n_layer": 1, "n_head": 1}, "this imagegpt"
         " cannot take images of 32 x 32 pixels and 3 channels (Expected tensor"),
    ],
)  # fmt: skip
def test_a_config_that_makes_no_network_is_refused(config, said):
    assert said in refusal(Settings(config=config))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "config: missing; give it, or model.pretrained"),
        (
            {"pretrained": "a/b", "config": {"model_type": "vit"}},
            "pretrained: brings its own config",
        ),
        ({"config": {"depths": [1]}}, "config: needs a model_type, such as resnet"),
        ({"config": {"model_type": "vit", "layer_norm_eps": float("inf")}}, "finite number"),
        ({"config": {"model_type": "vit"}, "pretrained_version": "a" * 64}, "is of no use without"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        Settings(**settings)


def vit(**more):
    torch.manual_seed(0)
    sizes = PATCHES | {"intermediate_size": 32, "image_size": 32}
    return ViTForImageClassification(ViTConfig(**sizes | more))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: vit(num_channels=1), r"cannot take images of 48 x 48 pixels and 3 channels \("),
        (
            lambda: CLIPTextModel(CLIPTextConfig(vocab_size=9)),
            "model.pretrained: .*: transformers has no image classifier 'clip_text_model'",
        ),
    ],
)
def test_a_pretrained_network_that_does_not_take_the_images_is_refused(tmp_path, make, said):
    make().save_pretrained(tmp_path)
    assert re.search(said, refusal(Settings(pretrained=str(tmp_path)), LARGER))


def test_a_file_without_a_last_layer_or_in_half_precision_is_loaded_quietly(tmp_path, capfd):
    saved = ViTModel(vit().config, add_pooling_layer=False).to(torch.bfloat16)
    saved.save_pretrained(tmp_path)
    capfd.readouterr()
    network = made(Settings(pretrained=str(tmp_path)), classes=4)
    assert capfd.readouterr() == ("", "")
    assert network.description["mean"] == [0.5] * 3  # without a processor
    ours = network.classifier.vit.state_dict()
    assert all(torch.equal(each.float(), ours[name]) for name, each in saved.state_dict().items())
    assert {value.dtype for value in network.state_dict().values()} == {torch.float32}


PROCESSORS = {
    "MobileViT": ("mobilevit", {}),  # BGR from 0 to 1, by the defaults of its class
    "EfficientNet": ("resnet", {"image_std": [0.4, 0.5, 0.6], "rescale_offset": True}),
    "ConvNext": ("resnet", {"do_normalize": False, "rescale_factor": 1 / 127.5}),
    "Bit": ("resnet", {"do_rescale": False, "image_mean": [99, 98, 97], "image_std": [50, 40, 30]}),
}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_a_network_gets_the_values_of_pixels_that_its_own_processor_makes(tmp_path, kind):
    architecture, given = PROCESSORS[kind]
    sizes = {"image_size": 32, "hidden_sizes": [16] * 3, "neck_hidden_sizes": [8] * 7}
    own = CONFIGS.get(architecture, sizes | {"num_attention_heads": 2})
    network = AutoModelForImageClassification.from_config(AutoConfig.for_model(architecture, **own))
    for each in network.parameters():
        if each.ndim > 1:  # the small weights of a new one would hide the colours
            torch.nn.init.xavier_normal_(each)
    network.eval().save_pretrained(tmp_path)
    processor = {"image_processor_type": f"{kind}ImageProcessor"} | given
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    prepare = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    whole = {"do_resize": False, "do_center_crop": False, "return_tensors": "pt"}
    taken = prepare([*pixels().numpy()], **whole)["pixel_values"]
    ours = made(Settings(pretrained=str(tmp_path)), classes=2).eval()
    with torch.inference_mode():
        expected = network.base_model(taken).last_hidden_state
        found, other = (
            ours.backbone(normalise(images, ours.mean, ours.std)).last_hidden_state
            for images in (pixels(), pixels().flip(-1))
        )
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.std())
    assert not torch.allclose(other, expected, rtol=1e-3, atol=0.1 * expected.std())
