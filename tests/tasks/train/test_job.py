"""Which epoch is the best, and when a training ends early."""

import pytest

from retrain.workload import Best, Scale
from tasks.train.job import lacking_gpus, score, stops_early


def epochs(*accuracies, losses=None):
    losses = losses or [1.0] * len(accuracies)
    return [
        {"val_accuracy": accuracy, "val_loss": loss}
        for accuracy, loss in zip(accuracies, losses, strict=True)
    ]


TIED = epochs(0.5, 0.8, 0.8, 0.8, 0.7, losses=[0.1, 0.5, 0.4, 0.4, 0.2])
BY_LOSS = epochs(0.5, 0.6, 0.9, losses=[0.9, 0.1, 0.3])


@pytest.mark.parametrize(
    ("history", "choice", "expected"),
    [
        (TIED, Best(), 2),  # the highest accuracy, then the lowest loss, then the first
        (BY_LOSS, Best(metric="val_loss"), 1),
        (BY_LOSS, Best(metric="val_loss", mode="max"), 0),
        (BY_LOSS, Best(metric="val_accuracy", mode="min"), 0),
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


BY_LOSS = epochs(0.5, 0.5, 0.5, losses=[1.0, 0.8, 0.6])  # the loss alone becomes better


@pytest.mark.parametrize(
    ("history", "choice", "patience", "ends"),
    [
        (epochs(0.5, 0.6, 0.6, 0.7, 0.65, 0.7, 0.9), Best(), 2, 6),
        (BY_LOSS, Best(), 2, 3),
        (BY_LOSS, Best(metric="val_loss"), 2, None),
        (BY_LOSS, Best(), None, None),
    ],
)
def test_a_training_stops_after_as_many_epochs_without_a_better_one(
    history, choice, patience, ends
):
    lengths = range(len(history) + 1)
    assert next((n for n in lengths if stops_early(history[:n], choice, patience)), None) == ends


@pytest.mark.parametrize(
    ("workers", "is_required", "gpus", "is_lacking"),
    [(0, True, 0, True), (0, True, 1, False), (2, True, 1, True), (2, True, 2, False),
     (2, False, 0, False)],
)  # fmt: skip
def test_each_worker_needs_a_gpu_where_they_are_required(workers, is_required, gpus, is_lacking):
    scale = Scale(workers=workers, require_gpu=is_required)
    assert lacking_gpus(scale, gpus)[0] == is_lacking
