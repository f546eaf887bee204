"""What a training can be told beside its learning rate; each also resumes to the bit."""

import numpy as np
import pytest
import torch
from safetensors.torch import load

import models
from retrain.workload import Augment, Best, ColorJitter, Plateau, Train
from tests.tasks.train.helpers import SMALL, run, run_interrupted, validated

BASE = Train(epochs=3, batch_size=16, lr=0.01)
CHOICES = {
    "ema": {"ema": 0.9},
    "freeze": {"freeze_epochs": 1},
    "sgd, plateau": {
        "optimizer": "sgd", "schedule": "plateau", "lr": 1.0,
        "plateau": Plateau(patience=0, factor=0.5),
    },
    "sampling": {"balance": "sampling"},
    "weights, changes in bf16": {
        "precision": "bf16",
        "balance": "loss",
        "micro_batch": 8,
        "augment": Augment(
            crop=0.5, color_jitter=ColorJitter(contrast=0.2), erasing=0.2, mixup=0.2, cutmix=1.0
        ),
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(images, tmp_path_factory):
    return run(tmp_path_factory.mktemp("plain"), images, BASE)


@pytest.mark.parametrize("choice", CHOICES)
def test_it_changes_the_training_resumes_to_the_bit_and_says_what_is_saved(
    images, plain, tmp_path, ending_before, steps, choice
):
    recipe = BASE.model_copy(update=CHOICES[choice])
    resumed = run_interrupted(tmp_path, images, recipe, ending_before(10))  # in the second epoch
    assert steps == list(range(10, 18))
    assert plain.facts["weights"] != resumed.facts["weights"]
    loss, *_ = validated(resumed, images)
    close = 0.05 if recipe.precision == "bf16" else 1e-5
    assert resumed.facts["val_loss"] == pytest.approx(loss, rel=close)


def test_a_frozen_backbone_stays_as_it_was_and_drops_nothing_out(images, tmp_path):
    recipe, trained = BASE.model_copy(update={"freeze_epochs": 3}), []
    for dropout in (0.0, 0.5):
        model = SMALL.model_copy(update={"dropout": dropout})
        trained.append(run(tmp_path / str(dropout), images, recipe, model=model))
    assert trained[0].facts["weights"] == trained[1].facts["weights"]
    torch.manual_seed(0)
    start = models.build("vit", SMALL.model_dump(exclude={"family"}), (8, 8, 1), 3).state_dict()
    for name, value in load(trained[0].model_files()[models.WEIGHTS]).items():
        assert torch.equal(value, start[name]) is not name.startswith("classifier.classifier")


def test_a_training_ends_early_says_so_and_is_then_over(images, tmp_path, steps, caplog):
    hyperparameters = BASE.model_copy(
        update={
            "epochs": 50,
            "lr": 1e-30,  # so that nothing becomes better
            "best": Best(metric="val_loss"),
            "early_stopping": 2,
        }
    )
    trained = run(tmp_path, images, hyperparameters)
    losses = [epoch["train_loss"] for epoch in trained.history]
    assert losses == pytest.approx([losses[0]] * 3, rel=0.02)  # an epoch leaves out some images
    assert losses[0] == pytest.approx(trained.history[0]["val_loss"], rel=0.1)
    assert "train ended early: val_loss was no better in the last 2 of 3 evaluations" in caplog.text
    best = np.argmin([epoch["val_loss"] for epoch in trained.history])
    assert trained.facts["best_epoch"] == 1 + best
    steps.clear()
    again = run(tmp_path, images, hyperparameters, output="again")
    assert steps == []
    assert again.facts == trained.facts
