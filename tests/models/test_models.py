import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import models

ROOT = Path(__file__).parents[2]
TINY = {"patch_size": 4, "hidden_size": 16, "layers": 1, "heads": 2}
IMAGES = {"size": 8, "channels": 3, "resize": "crop"}
LABELS = ["2", "10", "ä"]


def tiny():
    torch.manual_seed(0)
    return models.build("vit", TINY, (8, 8, 3), len(LABELS))


def save(module, folder):
    models.save(module, folder, family="vit", settings=TINY, labels=LABELS, images=IMAGES)


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


@pytest.mark.slow
def test_a_network_is_saved_as_the_same_bytes_in_each_process_and_answers_as_before(tmp_path):
    module = tiny().eval()
    save(module, tmp_path / "here")
    loaded = models.load(tmp_path / "here")
    assert (loaded.labels, loaded.images, loaded.module.training) == (tuple(LABELS), IMAGES, False)
    images = torch.arange(192, dtype=torch.uint8).view(1, 8, 8, 3)
    with torch.inference_mode():
        assert torch.equal(loaded.module(images), module(images))
    program = (
        "import pathlib, sys; from tests.models.test_models import save, tiny;"
        "save(tiny(), pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "there")], cwd=ROOT, check=True)
    for path in (tmp_path / "here").iterdir():
        assert path.read_bytes() == (tmp_path / "there" / path.name).read_bytes(), path.name
