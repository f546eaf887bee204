"""Which epoch is the best, and when a training ends early."""

import pytest

from retrain.workload import Best, EarlyStopping
from tasks.train.job import score, stops_early


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
    assert max(history, key=lambda epoch: score(epoch, choice)) is history[expected]


@pytest.mark.parametrize(
    "metric",
    ["loss", "val_loss", "val_nll", "val_brier", "val_ece", "top1_error", "val_RMSE", "perplexity"],
)
def test_the_epoch_with_the_lowest_loss_is_kept_whatever_the_loss_is_called(metric):
    history = [{metric: value} for value in (0.9, 0.2, 0.5)]
    assert max(history, key=lambda epoch: score(epoch, Best(metric=metric))) is history[1]


@pytest.mark.parametrize(
    "metric", ["val_accuracy", "val_f1", "val_macro_recall", "auc", "lossless"]
)
def test_the_epoch_with_the_highest_value_is_kept_of_other_metrics(metric):
    history = [{metric: value} for value in (0.2, 0.9, 0.5)]
    assert max(history, key=lambda epoch: score(epoch, Best(metric=metric))) is history[1]


SLOW = epochs(0.5, 0.52, 0.54, losses=[1.0, 0.8, 0.6])


@pytest.mark.parametrize(
    ("history", "choice", "rule", "ends"),
    [
        (epochs(0.5, 0.6, 0.6, 0.7, 0.65, 0.7, 0.9), Best(), EarlyStopping(patience=2), 6),
        (SLOW, Best(), EarlyStopping(patience=2, min_delta=0.05), 3),
        (SLOW, Best(metric="val_loss"), EarlyStopping(patience=2, min_delta=0.05), None),
        (SLOW, Best(), None, None),
    ],
)
def test_a_training_stops_after_as_many_epochs_without_a_better_one(history, choice, rule, ends):
    lengths = range(len(history) + 1)
    assert next((n for n in lengths if stops_early(history[:n], choice, rule)), None) == ends
