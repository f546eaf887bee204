"""The schedules and optimizers are PyTorch's; the temperature undoes what a network is too sure."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import models
from models.network import Network
from retrain.workload import Plateau, Train
from tasks.data.shards import open_prepared
from tasks.train.data_loading import SplitDataset
from tasks.train.recipe import (
    learning_rate,
    loss_function,
    make_optimizer,
    mean_loss,
    temperature,
)
from tests.tasks.train.helpers import run, write_form, write_prepared, write_split


def test_one_cycle_is_pytorchs():
    hyperparameters, steps = Train(lr=0.01, schedule="one_cycle", warmup=0.3), 50
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        hyperparameters.lr,
        total_steps=steps,
        pct_start=hyperparameters.warmup,
        cycle_momentum=False,
    )
    for step in range(steps):
        assert learning_rate(step, steps, hyperparameters) == pytest.approx(
            scheduler.get_last_lr()[0]
        )
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("patience", [0, 2])
def test_the_plateau_is_pytorchs(patience):
    random = np.random.default_rng(0)
    losses = [*np.linspace(1, 0.5, 5), *random.uniform(0.45, 0.6, 40)]
    hyperparameters = Train(
        lr=0.01, warmup=0, schedule="plateau", plateau=Plateau(factor=0.8, patience=patience)
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.8, patience=patience, eps=0
    )
    rates = []
    for epoch in range(len(losses)):
        rates.append(learning_rate(epoch, len(losses), hyperparameters, losses[:epoch]))
        assert rates[-1] == pytest.approx(optimizer.param_groups[0]["lr"])
        scheduler.step(losses[epoch])
    assert len(set(rates)) > 3


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1, 1]),
        # From step 4 on (1 + cos(pi * n / 6)) / 2.
        ("cosine", [0.2, 0.4, 0.6, 0.8, 1, 0.9330, 0.75, 0.5, 0.25, 0.0670]),
    ],
)
def test_the_rate_rises_in_a_line_and_then_stays_or_falls(schedule, rates):
    recipe = Train(lr=1.0, warmup=0.4, schedule=schedule)
    found = [learning_rate(step, len(rates), recipe) for step in range(len(rates))]
    assert found == pytest.approx(rates, abs=1e-4)


def test_sgd_looks_ahead_by_its_momentum():
    """Nesterov's: two steps with the gradient 1, by hand."""
    network = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(network.weight)
    recipe = Train(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.0)
    optimizer = make_optimizer(network, recipe)
    found = []
    for _ in range(2):
        network.weight.grad = torch.ones(1, 1)
        optimizer.step()
        found.append(network.weight.item())
    # The velocity is 1, then 0.9 + 1; each step is by 0.1 * (1 + 0.9 * velocity).
    assert found == pytest.approx([-0.19, -0.19 - 0.271])


@pytest.mark.parametrize(
    ("chosen", "kind"),
    [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)],
)
def test_the_optimizer_is_pytorchs_and_does_not_decay_biases(chosen, kind):
    given = torch.nn.Linear(3, 2)
    optimizer = make_optimizer(given, Train(optimizer=chosen, weight_decay=0.1))
    assert type(optimizer) is kind
    decays = [(group["params"], group["weight_decay"]) for group in optimizer.param_groups]
    assert decays == [([given.weight], 0.1), ([given.bias], 0.0)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("balance", ["none", "loss"])
def test_the_loss_is_that_of_each_image_by_the_weight_of_its_class(balance, smoothing):
    """Against a plain calculation, also of images that are mixed."""
    counts = np.array([95, 5, 20])
    labels = np.repeat(np.arange(3), counts)
    of = Train(balance=balance, label_smoothing=smoothing)
    loss_of = loss_function(of, labels, 3, torch.device("cpu"))
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    probabilities = torch.softmax(logits, dim=1).numpy()
    weights = 120 / (3 * counts) if balance == "loss" else np.ones(3)
    targets = [(torch.tensor([0, 1, 2, 2, 1, 0]), 0.7), (torch.tensor([2, 2, 1, 0, 0, 1]), 0.3)]
    expected = 0.0
    for given, share in targets:
        for row, label in enumerate(given.tolist()):
            wanted = np.full(3, smoothing / 3)
            wanted[label] += 1 - smoothing
            expected -= share * weights[label] * float(wanted @ np.log(probabilities[row])) / 6
    assert float(mean_loss(loss_of, logits, targets)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rare", [1, 3, 10])
def test_a_sure_image_of_the_frequent_class_is_not_learnt_as_the_rare_one(rare):
    """The best answer for an image that is always of the frequent class stays that class."""
    labels = np.repeat([0, 1], [100 - rare, rare])
    recipe = Train(balance="loss", label_smoothing=0.1)
    loss_of = loss_function(recipe, labels, 2, torch.device("cpu"))
    logits = torch.linspace(-6, 6, 241)
    frequent = torch.zeros(1, dtype=torch.int64)
    losses = [float(loss_of(torch.tensor([[0.0, float(each)]]), frequent)) for each in logits]
    best = torch.sigmoid(logits[int(np.argmin(losses))])
    assert float(best) == pytest.approx(0.05, abs=0.01)


CLASSES, ROWS = 4, 4000


def split_of(folder, images, labels):
    """A validation split of images of one row of pixels."""
    write_split(folder / "val", [images], labels)
    write_form(folder, [*map(str, range(CLASSES))], size=1, channels=1)
    return SplitDataset(folder, "val")


def answered(folder, factor):
    """A network that is as sure as `factor` times what the labels bear out, and its images.

    Their pixels are its logits, times some factor, of the labels' probabilities.
    """
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (ROWS, 1, CLASSES, 1), np.uint8)
    scale = 3.0
    weights = np.exp(pixels.reshape(ROWS, CLASSES) / 255 * scale)
    shares = np.cumsum(weights / weights.sum(1, keepdims=True), axis=1)
    labels = (random.random((ROWS, 1)) > shares).sum(1)
    network = Network(torch.nn.Flatten(), {}, [0.0], [1 / (scale * factor)])
    return network, split_of(folder, pixels, labels)


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_it_undoes_what_a_network_is_too_sure_or_too_unsure(tmp_path, factor):
    network, split = answered(tmp_path, factor)
    assert temperature(network, split, 256, "fp32") == pytest.approx(factor, rel=0.1)


def test_it_is_1_if_what_one_half_gains_the_other_loses(tmp_path):
    sure = np.array([[[0], [255]]] * 40, np.uint8)
    right = np.array([1, 0] * 20)  # in one half all, in the other none
    network = Network(torch.nn.Flatten(), {}, [0.0], [0.2])
    split = split_of(tmp_path, sure[:, None], right)
    assert temperature(network, split, 256, "fp32") == 1.0


def test_a_training_saves_it_and_its_answers_stay(tmp_path):
    images = write_prepared(tmp_path / "images", val=200)
    trained = run(tmp_path, images, Train(epochs=20, batch_size=16, lr=0.003))
    scaled = trained.folder / "model"
    unscaled = Path(shutil.copytree(scaled, tmp_path / "unscaled"))
    described = json.loads((scaled / models.MODEL).read_text(encoding="utf-8"))
    assert described["temperature"] == trained.facts["temperature"] != 1.0
    (unscaled / models.MODEL).write_text(json.dumps(described | {"temperature": 1.0}))
    val = open_prepared(images).split("val")
    pixels = torch.from_numpy(val.images[np.arange(len(val))])
    probabilities, plain = (
        models.load(folder).module.probabilities(pixels, "fp32") for folder in (scaled, unscaled)
    )
    assert torch.equal(probabilities.argmax(1), plain.argmax(1))
    rows, labels = torch.arange(len(val)), torch.from_numpy(val.labels)
    assert probabilities[rows, labels].log().sum() > plain[rows, labels].log().sum()
