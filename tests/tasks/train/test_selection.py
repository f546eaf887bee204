import pytest

from retrain.workload import Best, EarlyStopping
from tasks.train.selection import best_so_far, is_better, pruned_at, stops_early


def epochs(*accuracies, losses=None):
    losses = losses or [1.0] * len(accuracies)
    return [
        {"val_accuracy": accuracy, "val_loss": loss}
        for accuracy, loss in zip(accuracies, losses, strict=True)
    ]


TIED = epochs(0.5, 0.8, 0.8, 0.8, 0.7, losses=[0.1, 0.5, 0.4, 0.4, 0.2])
RISING = epochs(0.5, 0.6, 0.9, losses=[0.9, 0.1, 0.3])


@pytest.mark.parametrize(
    ("history", "choice", "expected"),
    [
        (TIED, Best(), 2),  # the highest accuracy, then the lowest loss, then the first
        (RISING, Best(metric="val_loss"), 1),
        (RISING, Best(metric="val_loss", mode="max"), 0),
        (RISING, Best(metric="val_accuracy", mode="min"), 0),
    ],
)
def test_the_best_epoch_follows_from_the_metric_and_its_mode(history, choice, expected):
    best = None
    for epoch in history:
        best = epoch if is_better(epoch, best, choice) else best
    assert best is history[expected]


def test_a_training_stops_after_as_many_epochs_without_a_better_one():
    rule = EarlyStopping(patience=2)
    history = epochs(0.5, 0.6, 0.6, 0.7, 0.65, 0.7, 0.9)
    stopped = [stops_early(history[:end], Best(), rule) for end in range(1, len(history) + 1)]
    assert stopped.index(True) == 5
    assert not any(stops_early(history[:end], Best(), None) for end in range(8))


def test_an_epoch_that_is_better_by_little_does_not_count():
    rule = EarlyStopping(patience=2, min_delta=0.05)
    history = epochs(0.5, 0.52, 0.54, losses=[1.0, 0.8, 0.6])
    assert stops_early(history, Best(), rule)
    assert not stops_early(history, Best(metric="val_loss"), rule)


def test_a_trial_is_judged_by_its_best_epoch_so_far():
    history = epochs(0.5, 0.3, 0.6)
    assert best_so_far(history, Best()) == [0.5, 0.5, 0.6]
    assert pruned_at(history, Best(), {2: 0.5, 3: 0.6}) is None  # as good as others is enough
    assert pruned_at(history, Best(), {2: 0.51, 3: 0.9}) == 2
    assert pruned_at(history, Best(), {4: 0.9}) is None
    losses = [{"epoch": 1}, {"epoch": 2, "loss": 0.5}]  # a function need not report it each time
    assert best_so_far(losses, Best(metric="loss")) == [float("-inf"), -0.5]
