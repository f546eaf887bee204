from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.network import FeatureExtractor, Network
from models.vit import Settings

TINY = {"patch_size": 4, "hidden_size": 16, "layers": 2, "heads": 2}
SHAPE = (8, 8, 3)


def pixels(count=64):
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=random)


def test_threads_that_share_a_network_get_the_features_of_their_own_images():
    network = Settings(**TINY).build(SHAPE, 3).eval()
    observed, images = FeatureExtractor(network), pixels(64).split(8)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda some: observed.answer(some, "fp32"), images))
    for some, (_, features) in zip(images, answers, strict=True):
        assert torch.equal(features, observed.answer(some, "fp32")[1])


class Single(nn.Sequential):
    """As a network of `transformers`, but with one part."""

    base_model_prefix = "0"


PARTS = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 3))


@pytest.mark.parametrize("unknown", [PARTS, Single(PARTS)], ids=["parts", "single"])
def test_a_network_whose_last_layer_is_not_known_has_no_features(unknown):
    observed = FeatureExtractor(Network(unknown, {}, [0.5] * 3, [0.5] * 3))
    assert observed.answer(pixels(), "fp32")[1] is None


def test_the_settings_decide_the_network_and_a_narrow_one_starts_with_larger_weights():
    network = Settings(**TINY, mlp_ratio=3.0, dropout=0.2).build(SHAPE, 5)
    config = network.description["config"]
    expected = {
        "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 48, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2,
    }  # fmt: skip
    assert {name: config[name] for name in expected} == expected
    given = Settings(**TINY, initializer_range=0.02).build(SHAPE, 5)
    for made, deviation in ((network, 0.25), (given, 0.02)):
        weights = made.classifier.vit.layers[0].mlp.fc1.weight.detach()
        assert float(weights.std()) == pytest.approx(deviation, rel=0.1)


def test_its_operations_are_those_that_pytorch_counts():
    settings = Settings(**TINY, mlp_ratio=3.0)
    network = settings.build(SHAPE, 2)
    network.prefer_attention("cpu", "bf16")  # as products of matrices, which are counted
    with FlopCounterMode(display=False) as counter:
        network(pixels(1))
    assert settings.flops(SHAPE) == pytest.approx(counter.get_total_flops(), rel=0.01)
