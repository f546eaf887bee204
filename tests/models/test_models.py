"""Saved networks, and those that take their weights."""

from functools import partial

import pytest
import torch

import models

LABELS = ["2", "10", "ä"]
TIED, NARROW = (
    {"factory": f"tests.tasks.train.functions:{name}", "mean": [0.5], "std": [0.25]}
    for name in ("tied", "narrow")
)


def maker(settings):
    return partial(models.build, "custom", settings, (8, 8, 1))


def save(network, folder, settings):
    images = {"size": 8, "channels": 1, "resize": "crop"}
    kind = {"family": "custom", "settings": settings}
    models.save(network, folder, labels=LABELS, images=images, **kind)


def test_a_network_answers_as_before_with_its_temperature_and_a_weight_of_two_names(tmp_path):
    network, another = maker(TIED)(3).eval(), maker(TIED)(3)
    network.temperature = 2.0
    save(network, tmp_path, TIED)
    classifier = models.load(tmp_path)
    loaded, images = classifier.module, torch.arange(64, dtype=torch.uint8).view(1, 8, 8, 1)
    assert classifier.labels == tuple(LABELS)
    assert loaded.classifier.second.weight is loaded.classifier.first.weight
    with torch.inference_mode():
        logits = network.classifier((images.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25)
        assert torch.allclose(loaded(images), logits, atol=1e-5)
    expected = torch.softmax(logits / 2, dim=1)
    assert torch.allclose(loaded.probabilities(images, "fp32"), expected, atol=1e-5)
    models.take_weights(another, tmp_path, LABELS, maker(TIED))
    assert torch.equal(another.classifier.second.weight, network.classifier.first.weight)


def test_classes_are_taken_by_their_names_and_as_many_hidden_units_in_their_order(tmp_path):
    saved, network = maker(NARROW)(3), maker(NARROW)(3)
    save(saved, tmp_path, NARROW)
    (hidden, last), (saved_hidden, saved_last) = (
        [layer for layer in each.classifier if isinstance(layer, torch.nn.Linear)]
        for each in (network, saved)
    )
    expected = torch.stack([last.weight[0], saved_last.weight[2], saved_last.weight[0]])
    models.take_weights(network, tmp_path, ["new", LABELS[2], LABELS[0]], maker(NARROW))
    assert torch.equal(last.weight, expected)
    assert torch.equal(hidden.weight, saved_hidden.weight)
    with pytest.raises(ValueError, match=r"^train\.init: the champion is another network: its "):
        models.take_weights(maker(TIED)(3), tmp_path, LABELS, maker(TIED))
