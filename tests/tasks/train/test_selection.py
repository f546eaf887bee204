import pytest

from retrain.workload import Best, EarlyStopping
from tasks.train.selection import is_better, of_equals, stops_early


def epochs(*accuracies, losses=None):
    losses = losses or [1.0] * len(accuracies)
    return [
        {"val_accuracy": accuracy, "val_loss": loss}
        for accuracy, loss in zip(accuracies, losses, strict=True)
    ]


def chosen(history, best):
    """The number of the best epoch, from 0."""
    found = None
    for number, epoch in enumerate(history):
        if is_better(epoch, None if found is None else history[found], best):
            found = number
    return found


def test_the_best_epoch_has_the_highest_accuracy_then_the_lowest_loss_then_is_the_first():
    history = epochs(0.5, 0.8, 0.8, 0.8, 0.7, losses=[0.1, 0.5, 0.4, 0.4, 0.2])
    assert chosen(history, Best()) == 2
    said = "the lowest val_loss of 3 epochs with this val_accuracy"
    assert of_equals(history, history[2], Best()) == said
    assert of_equals(history, history[0], Best()) is None


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (Best(metric="val_loss"), 1),
        (Best(metric="val_loss", mode="max"), 0),
        (Best(metric="val_accuracy", mode="min"), 0),
    ],
)
def test_the_metric_and_its_mode_can_be_chosen(best, expected):
    assert chosen(epochs(0.5, 0.6, 0.9, losses=[0.9, 0.1, 0.3]), best) == expected


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
