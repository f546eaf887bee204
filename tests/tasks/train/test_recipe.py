"""The schedules and optimizers are PyTorch's; the temperature undoes what a network is too sure."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from models.network import Network
from retrain.workload import Plateau, Train
from tasks.train.data_loading import BatchSampler, SplitDataset
from tasks.train.recipe import (
    clip_gradients,
    evaluate,
    learning_rate,
    loss_function,
    make_optimizer,
    mean_loss,
    temperature,
    update_average,
)
from tests.tasks.train.helpers import write_form, write_split

CPU = torch.device("cpu")


STEPS = 68


@pytest.mark.parametrize(
    ("settings", "scheduler"),
    [
        (
            {"schedule": "one_cycle", "warmup": 0.3},
            partial(
                OneCycleLR, max_lr=0.01, total_steps=STEPS, pct_start=0.3, cycle_momentum=False
            ),
        ),
        *(
            (
                {"schedule": "plateau", "warmup": 0, "plateau": Plateau(factor=0.8, patience=n)},
                partial(ReduceLROnPlateau, factor=0.8, patience=n, eps=0),
            )
            for n in (0, 2)
        ),
    ],
)
def test_a_schedule_is_pytorchs(settings, scheduler):
    noise = np.random.default_rng(0).uniform(0.45, 0.6, STEPS - 28)
    # At the end they fall, too little or just enough; and stay at the least there is.
    falling = 0.4 * np.cumprod([1 - share * 1e-4 for share in (0, 0.9, 0.9, 0.9, 1.1, 0.9) * 3])
    losses = [*np.linspace(1, 0.5, 5), *noise, *falling, *[0.0] * 5]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    theirs, rates = scheduler(optimizer), []
    for step in range(STEPS):
        rates.append(learning_rate(step, STEPS, Train(lr=0.01, **settings), losses[:step]))
        assert rates[-1] == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step(*([losses[step]] if "plateau" in settings else []))
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


@pytest.mark.parametrize(
    ("settings", "kind", "momentum"),
    [
        ({"optimizer": "adamw"}, torch.optim.AdamW, {}),
        ({"optimizer": "adam"}, torch.optim.Adam, {}),
        ({"optimizer": "sgd"}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (
            {"optimizer": "sgd", "momentum": 0.0},
            torch.optim.SGD,
            {"momentum": 0.0, "nesterov": False},
        ),
    ],
)
def test_the_optimizer_is_pytorchs_and_does_not_decay_biases(settings, kind, momentum):
    given, frozen = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).requires_grad_(False)
    recipe = Train(weight_decay=0.1, lr=0.02, **settings)
    optimizer = make_optimizer(torch.nn.Sequential(given, frozen), recipe)
    assert type(optimizer) is kind
    groups = [(each["params"], each["weight_decay"], each["lr"]) for each in optimizer.param_groups]
    assert groups == [([given.weight], 0.1, 0.02), ([given.bias], 0.0, 0.02)]
    assert momentum.items() <= optimizer.defaults.items()


@pytest.mark.parametrize(("largest", "scale"), [(0.0, 1.0), (6.5, 0.5), (20.0, 1.0)])
def test_gradients_are_scaled_down_to_the_largest_norm_if_there_is_one(largest, scale):
    network = torch.nn.Linear(2, 1)
    network.weight.grad, network.bias.grad = torch.tensor([[3.0, 4.0]]), torch.tensor([12.0])
    assert clip_gradients(network, largest).item() == 13
    assert network.weight.grad.tolist()[0] == pytest.approx([3 * scale, 4 * scale])
    assert network.bias.grad.item() == pytest.approx(12 * scale)


def test_the_average_keeps_less_in_the_first_updates_and_takes_the_statistics_as_they_are():
    average, network, expected = torch.nn.BatchNorm2d(1), torch.nn.BatchNorm2d(1), 0.0
    for updates, kept in enumerate((0, 2 / 11, 3 / 12, 4 / 13, 5 / 14, 0.4, 0.4, 0.4)):
        network.weight.data.fill_(updates**2)
        network.num_batches_tracked += 1
        update_average(average, network, 0.4, updates)
        expected = kept * expected + (1 - kept) * updates**2
        assert average.weight.item() == pytest.approx(expected)
    assert average.num_batches_tracked == 8


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("balance", ["none", "loss"])
def test_the_loss_is_that_of_each_image_by_the_weight_of_its_class(balance, smoothing):
    """Against a plain calculation, also of images that are mixed."""
    counts = np.array([95, 5, 20])
    labels = np.repeat(np.arange(3), counts)
    of = Train(balance=balance, label_smoothing=smoothing)
    loss_of = loss_function(of, labels, 3, CPU)
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    probabilities = torch.softmax(logits, dim=1).numpy()
    weights = 120 / (3 * counts) if balance == "loss" else np.ones(3)
    targets = [(torch.tensor([0, 1, 2, 2, 1, 0]), 0.7), (torch.tensor([2, 2, 1, 0, 0, 1]), 0.3)]
    expected = 0.0
    for given, share in targets:
        wanted = smoothing / 3 + (1 - smoothing) * np.eye(3)[given]
        losses = -(wanted * np.log(probabilities)).sum(axis=1)
        expected += share * float((weights[given] * losses).mean())
    assert float(mean_loss(loss_of, logits, targets)) == pytest.approx(expected, rel=1e-5)


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


@pytest.mark.parametrize(
    ("factor", "found"), [(0.1, 0.2), (0.5, 0.5), (1.0, 1.0), (4.0, 4.0), (100.0, 20.0)]
)
def test_it_undoes_what_a_network_is_too_sure_or_too_unsure_within_bounds(tmp_path, factor, found):
    network, split = answered(tmp_path, factor)
    told = temperature(network, split, 256, "fp32")
    assert told == pytest.approx(found, rel=0.1)
    assert told == round(told, 3)


def test_it_is_1_if_what_one_half_gains_the_other_loses(tmp_path):
    sure = np.array([[[0], [255]]] * 40, np.uint8)
    right = np.array([1, 0] * 20)  # in one half all, in the other none
    network = Network(torch.nn.Flatten(), {}, [0.0], [0.2])
    split = split_of(tmp_path, sure[:, None], right)
    assert temperature(network, split, 256, "fp32") == 1.0


@pytest.mark.parametrize(("workers", "calls"), [(1, 4), (2, 2), (3, 2), (5, 1)])
def test_workers_share_out_the_evaluation_and_call_a_network_as_often(tmp_path, workers, calls):
    """Without an exchange, what each of them finds is its part of the sums."""
    pixels = np.random.default_rng(0).integers(0, 256, (7, 1, CLASSES, 1), np.uint8)
    labels, called, sums = np.array([0, 2, 2, 3, 0, 2, 0]), [], np.zeros(3)
    split = split_of(tmp_path, pixels, labels)
    network = Network(torch.nn.Flatten(), {}, [0.0], [0.2])
    network.register_forward_hook(lambda *_: called.append(network.training))
    for rank in range(workers):
        found = evaluate(network, split, BatchSampler(7, 7, 0, rank, workers), 2, CPU)
        sums += [found[name] for name in ("val_loss", "val_accuracy", "val_macro_recall")]
        assert called == [False] * calls * (rank + 1)
    answers = pixels.reshape(7, CLASSES) / 255 / 0.2
    losses = np.log(np.exp(answers).sum(1)) - answers[np.arange(7), labels]
    right = answers.argmax(1) == labels
    recalls = [right[labels == label].mean() for label in (0, 2, 3)]
    assert sums == pytest.approx([losses.mean(), right.mean(), np.mean(recalls)], rel=1e-5)
