"""The formulas for what a network costs, against networks that are really built."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models import auto
from retrain.workload import Lora
from tasks.train.adapters import add_adapters

SHAPE, CLASSES = (64, 64, 3), 10
PATCHES = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 160,
    "patch_size": 8,
}  # fmt: skip
BASIC = {
    "model_type": "resnet", "layer_type": "basic", "embedding_size": 16,
    "hidden_sizes": [16, 32, 64], "depths": [2, 1, 2],
}  # fmt: skip
CONFIGS = [
    BASIC,
    {"model_type": "resnet", "depths": [2, 3, 1, 1], "downsample_in_first_stage": True},
    {"model_type": "convnext", "hidden_sizes": [16, 32, 64], "depths": [2, 1, 2], "num_stages": 3},
    {"model_type": "vit"} | PATCHES,
    {"model_type": "deit"} | PATCHES,
    {"model_type": "beit", "use_absolute_position_embeddings": True} | PATCHES,
    {"model_type": "dinov2", "mlp_ratio": 3}
    | {name: size for name, size in PATCHES.items() if name != "intermediate_size"},
    {"model_type": "clip", "vision_config": PATCHES},
]
WITH_LINEAR_LAYERS = [each for each in CONFIGS if each["model_type"] != "resnet"]
# Large enough for the layers to weigh more than the pixels.
CONVOLUTIONS = [
    BASIC | {"embedding_size": 32, "hidden_sizes": [32, 64, 128], "depths": [4, 2, 2]},
    {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [64, 128], "depths": [4, 4]},
    {"model_type": "convnext", "hidden_sizes": [32, 64], "depths": [3, 3], "num_stages": 2},
]


def name_of(config):
    return config["model_type"]


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_parameters_and_operations_are_counted(config):
    settings = auto.Settings(config=config)
    with torch.device("meta"):  # of all tensors only the shapes are made
        network = auto.build(settings, SHAPE, CLASSES).eval()
        images = torch.zeros((1, *SHAPE), dtype=torch.uint8)
        with FlopCounterMode(display=False) as counter:
            network(images)
    trained = sum(each.numel() for each in network.parameters() if each.requires_grad)
    assert auto.parameters(settings, SHAPE, CLASSES) == pytest.approx(trained, rel=0.02)
    counted = counter.get_total_flops()
    assert auto.flops(settings, SHAPE) == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize("config", WITH_LINEAR_LAYERS, ids=name_of)
def test_the_parameters_of_adapters_are_counted(config):
    settings = auto.Settings(config=config)
    with torch.device("meta"):
        network = auto.build(settings, SHAPE, CLASSES)
        add_adapters(network, Lora(r=4))
    trained = sum(each.numel() for each in network.parameters() if each.requires_grad)
    # The last layer of DINOv2 is twice as wide as a token.
    assert auto.lora_parameters(settings, 4, CLASSES) == pytest.approx(trained, rel=0.05)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("config", CONVOLUTIONS, ids=name_of)
def test_the_activations_of_convolutions_are_those_that_pytorch_keeps(config, precision):
    batch = 16
    settings = auto.Settings(config=config)
    network = auto.build(settings, SHAPE, CLASSES).train()
    weights = {each.untyped_storage().data_ptr() for each in network.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    images = torch.zeros((batch, *SHAPE), dtype=torch.uint8)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        network(images)
    # The peak of the backward pass, which is not kept, is in the estimate too.
    measured = sum(storage.nbytes() for storage in kept.values()) / batch
    assert measured < auto.activations(settings, SHAPE, "cpu", precision) < 2 * measured


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mobilenet_v2"},
        {"model_type": "resnet", "depths": "many"},
        {"model_type": "clip", "vision_config": None},
    ],
)
def test_what_is_not_known_counts_as_large_and_is_not_estimated(config, tmp_path):
    settings = auto.Settings(config=config)
    assert auto.flops(settings, SHAPE) == float("inf")
    assert auto.sized(settings, tmp_path) is None


def test_a_network_that_is_far_too_large_is_refused_at_once():
    settings = auto.Settings(config={"model_type": "resnet", "depths": [1, 1, 1, 10**9]})
    assert auto.faults(settings, SHAPE) == ["model.config makes more than 10^12 parameters."]
