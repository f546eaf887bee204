import numpy as np
import pytest
import torch

from retrain.workload import Plateau, Train
from tasks.train.optimization import (
    clip_gradients,
    learning_rate,
    make_optimizer,
)


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


@pytest.mark.parametrize("largest", [0.5, 0.0])
def test_clipping_scales_the_gradients_down_and_0_leaves_them(largest):
    module = torch.nn.Linear(1, 1)
    module.weight.grad, module.bias.grad = torch.tensor([[3.0]]), torch.tensor([4.0])
    assert float(clip_gradients(module, largest)) == pytest.approx(5)
    after = torch.cat([module.weight.grad.flatten(), module.bias.grad]).norm()
    assert float(after) == pytest.approx(largest or 5, rel=1e-4)


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
    ("chosen", "kind"),
    [("adamw", torch.optim.AdamW), ("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)],
)
def test_the_optimizer_is_pytorchs_and_does_not_decay_biases(chosen, kind):
    given, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    other.load_state_dict(given.state_dict())
    hyperparameters = Train(optimizer=chosen, lr=0.1, weight_decay=0.1, momentum=0.8)
    more = {"momentum": 0.8, "nesterov": True} if chosen == "sgd" else {}
    groups = [
        {"params": [other.weight], "weight_decay": 0.1},
        {"params": [other.bias], "weight_decay": 0.0},
    ]
    ours, theirs = make_optimizer(given, hyperparameters), kind(groups, lr=0.1, **more)
    for _ in range(3):
        for module, optimizer in ((given, ours), (other, theirs)):
            optimizer.zero_grad()
            module(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
    assert torch.allclose(given.weight, other.weight, atol=1e-6)
    assert torch.allclose(given.bias, other.bias, atol=1e-6)
