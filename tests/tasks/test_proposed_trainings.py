"""What `retrain init` proposes learns what a plain loop learns, whatever the images are like.

Of a training from scratch a fraction of the epochs is made here: in bands of one brightness the
classes are plain, and what ruins a training, such as weights that pull to the rare class, does so
from the first epoch on.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import models
from models.pretrained import find_version
from retrain.workload import Model, Train
from tasks.data.shards import open_prepared
from tasks.scaffold import Backbone, Survey, propose
from tests.tasks.embed.conftest import describe_rows, run_embed, write_backbone
from tests.tasks.train.helpers import run, write_form, write_split

STEPS = 100
# What the images are like: those of each class, their side, whether they are grey, and whether the
# data has splits.
RARE = "a rare class"
CASES = {
    RARE: ((260, 10), 32, False, False),
    "few images": ((8, 8, 8), 64, False, False),
    "few images, and a rare class": ((40, 6, 6), 64, False, False),
    "one channel": ((60, 60), 64, True, False),
    "one channel, and a rare class": ((260, 10), 28, True, False),
    "tiny images": ((60, 60, 60), 8, False, False),
    "large images": ((12, 12), 100, False, False),
    "splits": ((100, 90), 32, False, True),
    "splits, a rare class, one channel": ((260, 10), 32, True, True),
}


def draw(folder: Path, counts: tuple[int, ...], size: int, channels: int) -> Path:
    """Prepared images: noise, with the band that names the class brighter; val has a third more."""
    random = np.random.default_rng(0)
    for split, part in (("train", 1.0), ("val", 0.34), ("test", 0.34)):
        of_split = [max(3, round(count * part)) for count in counts]
        labels = random.permutation(np.repeat(np.arange(len(counts)), of_split))
        images = random.integers(0, 156, (len(labels), size, size, channels), np.uint8)
        for image, label in zip(images, labels, strict=True):
            band = size // len(counts)
            image[label * band : (label + 1) * band] += 60
        write_split(folder / split, [images], labels)
    write_form(folder, [f"class {n}" for n in range(len(counts))], size=size, channels=channels)
    return folder


def proposed(case: str, backbone: Backbone | None = None) -> dict:
    counts, side, is_grey, has_splits = CASES[case]
    classes = {f"class {n}": count for n, count in enumerate(counts)}
    images = sum(counts)
    splits = {"train": images - 40, "val": 20, "test": 20} if has_splits else {}
    seen = Survey("folders", 10**6, classes, splits, 0, side, is_grey, {}, images)
    return dict(propose("data/photos", seen, 1, backbone).entry)


def plain_recall(images: Path, model: Model, batch_size: int, steps: int) -> float:
    """The macro recall on the validation split after a plain loop."""
    data = open_prepared(images)
    train, val = data.split("train"), data.split("val")
    pixels, labels = torch.from_numpy(train.images[np.arange(len(train))]), train.labels
    counts = np.bincount(labels)
    settings = model.model_dump(exclude={"family"})
    torch.manual_seed(0)
    network = models.build(model.family, settings, tuple(pixels.shape[1:]), len(counts))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.001)
    loss_of = torch.nn.CrossEntropyLoss(torch.tensor(1 / counts, dtype=torch.float32))
    random = np.random.default_rng(0)
    for _ in range(steps):
        rows = random.integers(0, len(labels), batch_size)
        loss = loss_of(network(pixels[rows]), torch.from_numpy(labels[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval()
    with torch.inference_mode():
        answers = network(torch.from_numpy(val.images[np.arange(len(val))])).argmax(1).numpy()
    right = answers == val.labels
    return float(np.mean([right[val.labels == label].mean() for label in range(len(counts))]))


def recalls(root: Path, images: Path, model: Model, settings: dict) -> tuple[float, float]:
    """The macro recall at the end of a training, and after a plain loop of as many steps.

    Of the last epoch: the best one, which is kept, hides what ruins the later ones.
    """
    trained = run(root, images, Train.model_validate(settings), model=model)
    batch_size = settings["batch_size"]
    steps = settings["epochs"] * (len(open_prepared(images).split("train")) // batch_size)
    return (
        trained.history[-1]["val_macro_recall"],
        plain_recall(images, model, batch_size, steps),
    )


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case != RARE)) for case in CASES]
)
def test_a_training_from_scratch(case, tmp_path):
    entry = proposed(case)
    form, settings = entry["images"], entry["train"]
    images = draw(tmp_path / "images", CASES[case][0], form["size"], form["channels"])
    epochs = STEPS * settings["batch_size"] // len(open_prepared(images).split("train"))
    settings["epochs"] = min(settings["epochs"], epochs)
    ours, plain = recalls(tmp_path, images, Model(**entry["model"]), settings)
    assert ours >= plain - 0.05
    assert ours > 0.9


@pytest.mark.parametrize("case", [RARE, "few images, and a rare class", "tiny images"])
def test_a_head_on_a_pretrained_network(case, tmp_path):
    backbone = write_backbone(tmp_path / "vit")
    entry = proposed(case, Backbone(str(backbone), 8))
    images = draw(tmp_path / "images", CASES[case][0], 8, 1)
    describe_rows(images)
    embedded = run_embed(tmp_path / "embed", images, backbone)
    model = Model(**entry["model"], pretrained_version=find_version(str(backbone), Path()))
    ours, plain = recalls(tmp_path, embedded.folder, model, entry["train"])
    assert ours >= plain - 0.05
    assert ours > 0.5  # of a network with random weights; by chance a third or a half
