import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from pydantic import ValidationError
from transformers import ViTConfig, ViTForImageClassification

import models
from models.network import Network, Observed
from models.vit import Settings, build

TINY = {"patch_size": 4, "hidden_size": 16, "layers": 2, "heads": 2}
SHAPE = (8, 8, 3)


def pixels(count=64, channels=3):
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 8, 8, channels), dtype=torch.uint8, generator=random)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A folder as `transformers` writes it: 8 x 8 RGB, three classes."""
    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, num_channels=3, patch_size=4, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, num_labels=3,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    processor = {"do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def test_its_features_are_what_the_last_layer_takes_also_in_several_threads():
    network = build(Settings(**TINY), SHAPE, 3).eval()
    observed, images = Observed(network), pixels(64).split(8)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda some: observed.answer(some, "fp32"), images))
    for probabilities, features in answers:
        assert features.shape == (8, 16)
        assert features.dtype == torch.float32
        with torch.inference_mode():
            expected = torch.softmax(network.last_layer(features), 1)
        assert torch.allclose(probabilities, expected, atol=1e-6)


def test_a_network_of_unknown_parts_shows_no_features():
    parts = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 8 * 3, 3))
    answered, features = Observed(Network(parts, {}, [0.5] * 3, [0.5] * 3)).answer(
        pixels(4), "fp32"
    )
    assert answered.shape == (4, 3)
    assert features is None


@pytest.mark.parametrize("channels", [1, 3])
def test_uint8_images_become_float32_logits(channels):
    network = build(Settings(**TINY), (8, 8, channels), 5)
    logits = network(pixels(7, channels))
    assert logits.shape == (7, 5)
    assert logits.dtype == torch.float32


def test_logits_are_float32_under_autocast_too():
    network = build(Settings(**TINY), SHAPE, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert network(pixels()).dtype == torch.float32


def test_pixels_are_normalised_to_minus_one_to_one():
    network = build(Settings(**TINY), SHAPE, 5)
    seen = []
    network.classifier.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    network(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, *SHAPE))
    assert seen[0].shape == (2, 3, 8, 8)
    assert torch.allclose(seen[0][0], torch.tensor(-1.0))
    assert torch.allclose(seen[0][1], torch.tensor(1.0))


def test_the_settings_decide_the_network():
    config = build(Settings(**TINY, mlp_ratio=3.0, dropout=0.2), SHAPE, 5).description["config"]
    assert config["patch_size"] == 4
    assert config["hidden_size"] == 16
    assert config["num_hidden_layers"] == 2
    assert config["num_attention_heads"] == 2
    assert config["intermediate_size"] == 48
    assert config["hidden_dropout_prob"] == config["attention_probs_dropout_prob"] == 0.2


def test_the_seed_decides_the_weights():
    networks = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        networks.append(build(Settings(**TINY), SHAPE, 5).eval()(pixels()))
    assert torch.equal(networks[0], networks[1])
    assert not torch.equal(networks[0], networks[2])


def test_a_narrow_network_starts_with_larger_weights():
    narrow = build(Settings(**TINY), SHAPE, 5).classifier
    assert float(narrow.vit.layers[0].mlp.fc1.weight.detach().std()) == pytest.approx(0.25, rel=0.1)
    given = build(Settings(**TINY, initializer_range=0.02), SHAPE, 5).classifier
    assert float(given.vit.layers[0].mlp.fc1.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_a_patch_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ValueError, match=r"model\.patch_size: 3 does not divide images\.size 8"):
        build(Settings(**TINY | {"patch_size": 3}), SHAPE, 5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hidden_size": 10, "heads": 3}, "heads: 3 does not divide hidden_size 10"),
        ({"pretrained": "a/b", "layers": 3}, "pretrained: brings its own sizes: leave out layers"),
        ({"dropout": 1.0}, "less than 1"),
        ({"layers": 0}, "greater than or equal to 1"),
        ({"width": 3}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        Settings(**settings)


@pytest.mark.parametrize("classes", [3, 5])
def test_pretrained_weights_are_taken_and_the_head_is_new(pretrained, classes):
    theirs = ViTForImageClassification.from_pretrained(pretrained)
    ours = build(Settings(pretrained=str(pretrained)), SHAPE, classes).classifier
    for name, value in theirs.vit.state_dict().items():
        assert torch.equal(value, ours.vit.state_dict()[name]), name
    assert ours.classifier.weight.shape == (classes, 16)
    if classes == 3:
        assert not torch.equal(ours.classifier.weight, theirs.classifier.weight)


def test_a_pretrained_network_keeps_its_normalisation(pretrained):
    network = build(Settings(pretrained=str(pretrained)), SHAPE, 5)
    assert network.description["mean"] == [0.1, 0.2, 0.3]
    assert network.description["std"] == [0.4, 0.5, 0.6]
    theirs = ViTForImageClassification.from_pretrained(pretrained).vit
    x = pixels() / 255
    x = (x - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([0.4, 0.5, 0.6])
    expected = theirs(x.permute(0, 3, 1, 2)).last_hidden_state[:, 0]
    expected = network.classifier.classifier(expected)
    assert torch.allclose(network(pixels()), expected, atol=1e-5)


def test_a_fine_tuned_network_is_loaded_without_what_it_started_from(pretrained, tmp_path):
    started = tmp_path / "started"
    started.mkdir()
    for path in pretrained.iterdir():
        (started / path.name).write_bytes(path.read_bytes())
    settings = {"pretrained": str(started), "dropout": 0.1}
    network = models.build("vit", settings, SHAPE, 5).eval()
    saved = {"family": "vit", "settings": settings, "labels": list("abcde"), "images": {}}
    models.save(network, tmp_path / "model", **saved)
    for path in started.iterdir():
        path.unlink()
    with torch.inference_mode():
        assert torch.equal(models.load(tmp_path / "model").module(pixels()), network(pixels()))


def test_half_precision_weights_are_trained_in_float32(pretrained, tmp_path):
    theirs = ViTForImageClassification.from_pretrained(pretrained, dtype=torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    network = build(Settings(pretrained=str(tmp_path)), SHAPE, 5)
    assert {value.dtype for value in network.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((16, 16, 3), r"takes images of 8 x 8 pixels, but images\.size is 16"),
        ((8, 8, 1), r"takes images of 3 channels, but images\.channels is 1"),
    ],
)
def test_images_that_a_pretrained_network_does_not_take_are_refused(pretrained, shape, said):
    with pytest.raises(ValueError, match=said):
        build(Settings(pretrained=str(pretrained)), shape, 5)


def test_a_pretrained_network_of_another_family_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "resnet"}))
    with pytest.raises(ValueError, match="is a resnet, not a vit"):
        build(Settings(pretrained=str(tmp_path)), SHAPE, 5)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    missing = str(tmp_path / "missing")
    with pytest.raises(ValueError, match=f"{missing} is neither a folder with a model nor one on"):
        build(Settings(pretrained=missing), SHAPE, 5)


def test_a_hub_that_is_out_of_reach_can_be_tried_again(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OSError, match="the Hugging Face hub cannot be reached") as raised:
        build(Settings(pretrained="somebody/some-vit"), SHAPE, 5)
    assert not isinstance(raised.value, ValueError)


def test_loading_prints_nothing(pretrained, capfd):
    build(Settings(pretrained=str(pretrained)), SHAPE, 5)
    assert capfd.readouterr() == ("", "")
