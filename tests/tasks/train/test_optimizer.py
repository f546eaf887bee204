import pytest
import torch

from retrain.workload import Train
from tasks.train.optimizer import clip_gradients, learning_rate, make_optimizer


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


def test_cosine_rises_to_the_peak_and_falls_towards_zero():
    hyperparameters, steps = Train(lr=0.01, schedule="cosine", warmup=0.1), 100
    rates = [learning_rate(step, steps, hyperparameters) for step in range(steps)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[0] > 0
    assert max(rates) == rates[10] == pytest.approx(hyperparameters.lr)
    assert rates[55] == pytest.approx(hyperparameters.lr / 2)
    assert 0 < rates[-1] < 0.01 * hyperparameters.lr


@pytest.mark.parametrize("schedule", ["cosine", "one_cycle"])
@pytest.mark.parametrize("warmup", [0.0, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 4, 7])
def test_the_shortest_trainings_have_a_learning_rate_too(schedule, warmup, steps):
    hyperparameters = Train(lr=0.01, schedule=schedule, warmup=warmup)
    rates = [learning_rate(step, steps, hyperparameters) for step in range(steps)]
    assert all(0 < rate <= hyperparameters.lr * (1 + 1e-12) for rate in rates)


def test_biases_and_norms_do_not_decay():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    decaying, others = make_optimizer(module, Train(weight_decay=0.1)).param_groups
    assert [list(each.shape) for each in decaying["params"]] == [[2, 3]]
    assert decaying["weight_decay"] == 0.1
    assert len(others["params"]) == 3
    assert others["weight_decay"] == 0


@pytest.mark.parametrize("largest", [0.5, 0.0])
def test_clipping_scales_the_gradients_down_and_0_leaves_them(largest):
    module = torch.nn.Linear(1, 1)
    module.weight.grad, module.bias.grad = torch.tensor([[3.0]]), torch.tensor([4.0])
    assert float(clip_gradients(module, largest)) == pytest.approx(5)
    after = torch.cat([module.weight.grad.flatten(), module.bias.grad]).norm()
    assert float(after) == pytest.approx(largest or 5, rel=1e-4)
