"""What a training can be told beside its learning rate; each also resumes to the bit."""

import numpy as np
import pytest
import torch
from safetensors.torch import load

import models
from retrain.project import Project
from retrain.workload import (
    Augment,
    Best,
    ColorJitter,
    Data,
    Model,
    Plateau,
    Train,
    Workload,
)
from tasks.train.job import check
from tasks.train.recipe import loss_function, update_average
from tests.tasks.train.helpers import SMALL, run, run_interrupted, validated

BASE = Train(epochs=3, batch_size=16, lr=0.01)
RESNET = {
    "model_type": "resnet", "embedding_size": 8, "layer_type": "basic",
    "downsample_in_first_stage": False,
}  # fmt: skip
CHOICES = {
    "ema": {"ema": 0.9},
    "freeze": {"freeze_epochs": 1},
    "sgd, plateau": {
        "optimizer": "sgd", "schedule": "plateau", "lr": 1.0,
        "plateau": Plateau(patience=0, factor=0.5),
    },
    "weights": {"balance": "loss"},
    "bf16": {"precision": "bf16"},
    "sampling": {"balance": "sampling", "augment": Augment(shift=1)},
    "changes": {
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


def test_a_network_with_batch_norms_learns_and_goes_on_to_the_bit(images, tmp_path, ending_before):
    resnet = Model(family="auto", config=RESNET | {"hidden_sizes": [8, 16], "depths": [1, 1]})
    recipe = BASE.model_copy(update={"epochs": 6, "augment": Augment(shift=1)})
    trained = run_interrupted(tmp_path, images, recipe, ending_before(15), model=resnet)
    assert trained.facts["val_accuracy"] > 0.6
    weights = models.load(trained.folder / "model").module.state_dict()
    counts = {int(each) for name, each in weights.items() if "num_batches_tracked" in name}
    assert counts == {6 * trained.facts["best_epoch"]}


@pytest.fixture
def started():
    """The weights with which a training of the small network starts."""
    torch.manual_seed(0)
    return models.build("vit", SMALL.model_dump(exclude={"family"}), (8, 8, 1), 3).state_dict()


def test_a_frozen_backbone_stays_as_it_was(images, tmp_path, started):
    trained = run(tmp_path, images, BASE.model_copy(update={"freeze_epochs": 3}))
    for name, value in load(trained.model_files()[models.WEIGHTS]).items():
        assert torch.equal(value, started[name]) is not name.startswith("classifier.classifier")


def test_a_frozen_backbone_drops_nothing_out(images, tmp_path):
    """Its activations are those that the network has when it answers."""
    dropping = SMALL.model_copy(update={"dropout": 0.5})
    recipe = BASE.model_copy(update={"epochs": 1, "freeze_epochs": 1})
    losses = [
        run(tmp_path / str(model.dropout), images, recipe, model=model).history[0]["train_loss"]
        for model in (SMALL.model_copy(update={"dropout": 0.0}), dropping)
    ]
    assert losses[0] == losses[1]


def test_the_loss_of_an_epoch_is_of_its_steps(images, tmp_path):
    recipe = BASE.model_copy(update={"lr": 1e-30})
    first, *others = [epoch["train_loss"] for epoch in run(tmp_path, images, recipe).history]
    assert others == pytest.approx([first] * 2, rel=0.02)  # an epoch leaves out some images


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
    assert len(trained.history) == 3
    assert "train ended early: val_loss was no better in the last 2 of 3 evaluations" in caplog.text
    assert trained.facts["best_epoch"] == 1 + np.argmin(
        [epoch["val_loss"] for epoch in trained.history]
    )
    steps.clear()
    again = run(tmp_path, images, hyperparameters, output="again")
    assert steps == []
    assert again.facts == trained.facts


def test_the_average_begins_as_the_weights():
    average, network = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    for updates, (weight, expected) in enumerate(((5.0, 5.0), (16.0, 5 + 11 * 9 / 11))):
        network.weight.data.fill_(weight)
        network.num_batches_tracked += 1
        update_average(average, network, 0.9, updates)
        assert average.weight.tolist() == pytest.approx([expected] * 3)
    assert average.num_batches_tracked == 2


def test_the_images_of_rare_classes_count_more():
    labels, logits = np.array([0, 0, 0, 1]), torch.randn(4, 2)
    each = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="none")
    weighted = loss_function(Train(balance="loss"), labels, 2, torch.device("cpu"))
    expected = (each * torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0])).mean()
    assert torch.allclose(weighted(logits, torch.from_numpy(labels)), expected)
    plain = loss_function(Train(), labels, 2, torch.device("cpu"))
    assert torch.allclose(plain(logits, torch.from_numpy(labels)), each.mean())


CUSTOM = Model(family="custom", factory="examples.network:build_model", arguments={})


@pytest.mark.parametrize(
    ("model", "train", "fault"),
    [
        (
            SMALL,
            Train(best=Best(metric="f1")),
            "train.best.metric: f1 is not one of train_loss, val_loss, val_accuracy, "
            "val_macro_recall.",
        ),
        (
            CUSTOM,
            Train(freeze_epochs=1),
            "train.freeze_epochs: it needs a network of transformers, with a known last layer.",
        ),
    ],
)
def test_what_does_not_go_together_is_found_before_anything_runs(tmp_path, model, train, fault):
    workload = Workload(name="sides", data=Data(path="data/sides"), model=model, train=train)
    assert list(check(workload, Project(tmp_path))) == [fault]
