"""Saved networks, and the families that make them."""

from functools import partial

import torch

import models

IMAGES = {"size": 8, "channels": 3, "resize": "crop"}
LABELS = ["2", "10", "ä"]


def test_a_weight_with_two_names_is_saved_once_and_is_still_one(tmp_path):
    settings = {"factory": "tests.tasks.train.functions:tied"}
    shape = (8, 8, 1)
    module = models.build("custom", settings, shape, 2)
    kind = {"family": "custom", "settings": settings, "labels": LABELS[:2], "images": IMAGES}
    models.save(module, tmp_path, **kind)
    loaded = models.load(tmp_path).module.classifier
    assert loaded.second.weight is loaded.first.weight
    assert torch.equal(loaded.second.weight, module.classifier.second.weight)
    another = models.build("custom", settings, shape, 2)
    make = partial(models.build, "custom", settings, shape)
    models.take_weights(another, tmp_path, LABELS[:2], make)
    assert torch.equal(another.classifier.second.weight, module.classifier.second.weight)


def test_hidden_units_that_are_as_many_as_the_classes_stay_in_their_order(tmp_path):
    make = partial(
        models.build, "custom", {"factory": "tests.tasks.train.functions:narrow"}, (8, 8, 1)
    )
    module, another = make(3), make(3)
    kind = {"family": "custom", "settings": {"factory": "tests.tasks.train.functions:narrow"}}
    models.save(module, tmp_path, **kind, labels=LABELS, images=IMAGES)
    models.take_weights(another, tmp_path, LABELS[::-1], make)
    images = torch.arange(192, dtype=torch.uint8).view(3, 8, 8, 1)
    with torch.inference_mode():
        assert torch.equal(another(images), module(images).flip(1))
