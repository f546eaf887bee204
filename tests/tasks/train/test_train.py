"""A training by the project's own loop: what it can be told, and interruptions."""

import pytest
import torch
from safetensors.torch import load

import models
from retrain.workload import Augment, Best, ColorJitter, Model, Plateau, Scale, Train
from tasks.train import distributed, train
from tasks.train.session import CHECKPOINTS, read_state
from tests.tasks.train.helpers import (
    OFTEN,
    SMALL,
    kept,
    run,
    run_interrupted,
    validated,
    write_prepared,
)

BASE = Train(epochs=3, batch_size=16, lr=0.01)
DROPOUT = SMALL.model_copy(update={"dropout": 0.1})
CHOICES = {
    "seed": {"seed": 1},
    "moved": {"augment": Augment(shift=1, flip=True)},
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
    return run(tmp_path_factory.mktemp("plain"), images, BASE, model=DROPOUT)


@pytest.mark.parametrize("choice", CHOICES)
def test_it_changes_the_training_resumes_to_the_bit_and_says_what_is_saved(
    images, plain, tmp_path, ending_before, steps, choice, caplog
):
    recipe, ending = BASE.model_copy(update=CHOICES[choice]), ending_before(10)  # in its 2nd epoch
    resumed = run_interrupted(tmp_path, images, recipe, ending, model=DROPOUT)
    assert "train ended at step 10. The same command goes on from there." in caplog.messages
    assert "train continues at step 10, from its last checkpoint." in caplog.messages
    assert steps == list(range(10, 18))
    assert plain.facts["weights"] != resumed.facts["weights"]
    loss, _ = validated(resumed, images)
    close = 0.05 if recipe.precision == "bf16" else 1e-5
    assert resumed.facts["val_loss"] == pytest.approx(loss, rel=close)


def test_a_frozen_backbone_stays_as_it_was_and_drops_nothing_out(images, tmp_path):
    recipe = BASE.model_copy(update={"freeze_epochs": 3})
    trained = run(tmp_path, images, recipe, model=SMALL)
    other = run(tmp_path / "other", images, recipe, model=DROPOUT)
    assert trained.facts["weights"] == other.facts["weights"]
    torch.manual_seed(0)
    start = models.build("vit", SMALL.model_dump(exclude={"family"}), (8, 8, 1), 3).state_dict()
    for name, value in load(trained.model_files()[models.WEIGHTS]).items():
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
    steps.clear()
    again = run(tmp_path, images, hyperparameters, output="again")
    assert steps == []
    assert (again.facts, again.run_id) == (trained.facts, trained.run_id)


def test_a_training_that_diverges_leaves_no_checkpoint_of_it(images, tmp_path, monkeypatch):
    clip, norms = train.clip_gradients, []

    def exploding(network, largest):
        norms.append(clip(network, largest))
        return norms[-1] * float("nan") if len(norms) == 15 else norms[-1]

    monkeypatch.setattr(train, "clip_gradients", exploding)
    with pytest.raises(ValueError, match=r"diverged in epoch 3: .* Lower train\.lr"):
        run(tmp_path, images, BASE, model=DROPOUT, scale=OFTEN)
    newest = read_state(tmp_path / "scratch" / CHECKPOINTS / "00000014")
    assert kept(tmp_path / "scratch")[-1] == newest["step"] == 14
    assert all(value.isfinite().all() for value in newest["weights"].values())


def test_a_training_that_diverges_in_its_last_step_is_refused(images, tmp_path):
    with pytest.raises(ValueError, match="diverged in epoch 1"):
        run(tmp_path, images, Train(epochs=1, batch_size=96, lr=1e30))


# A table of position biases with one row for many pairs of pixels: threads add up its gradient.
BIASED = {
    "model_type": "swin", "patch_size": 1, "window_size": 16, "depths": [1], "num_heads": [1],
    "embed_dim": 8,
}  # fmt: skip


def test_a_training_with_several_threads_repeats_itself_to_the_bit(tmp_path):
    folder = write_prepared(tmp_path / "images", rows=32, val=32, size=16)
    recipe, model = Train(epochs=1, batch_size=8), Model(family="auto", config=BIASED)
    weights = {
        run(tmp_path / str(n), folder, recipe, model=model, scale=Scale(threads=2)).facts["weights"]
        for n in range(3)
    }
    assert len(weights) == 1


def test_a_network_that_cannot_be_repeated_to_the_bit_is_trained_too(images, tmp_path):
    model = Model(family="custom", factory="tests.tasks.train.functions:unrepeatable")
    with pytest.warns(UserWarning, match=distributed.NOT_REPEATABLE):
        run(tmp_path, images, Train(epochs=1, batch_size=16), model=model)
    assert not torch.are_deterministic_algorithms_enabled()
