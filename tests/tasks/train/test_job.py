"""Which epoch is the best, when a training ends early, and when a trial of a search does."""

from time import time

import pytest

from retrain.errors import PrunedError
from retrain.project import Project
from retrain.registry import tracking
from retrain.step import TrialContext
from retrain.workload import Best, EarlyStopping, Model, Scale, Train
from tasks.train.job import best_so_far, pruned_at, score, stops_early
from tests.tasks.train.helpers import run


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


def test_a_trial_is_judged_by_its_best_epoch_so_far():
    history = epochs(0.5, 0.3, 0.6)
    assert best_so_far(history, Best()) == [0.5, 0.5, 0.6]
    assert pruned_at(history, Best(), {2: 0.5, 3: 0.6}) is None  # as good as others is enough
    assert pruned_at(history, Best(), {2: 0.51, 3: 0.9}) == 2
    assert pruned_at(history, Best(), {4: 0.9}) is None
    losses = [{"epoch": 1}, {"epoch": 2, "loss": 0.5}]  # a function need not report it each time
    assert best_so_far(losses, Best(metric="loss")) == [float("-inf"), -0.5]


RECIPE = Train(epochs=5, batch_size=16, lr=0.01)
OUT_OF_REACH = TrialContext("trial 4", "parent", {1: 0.0, 3: 1.1})  # the first is reached


def prune(root, images, recipe, **more):
    """Runs a trial that is pruned."""
    with pytest.raises(PrunedError) as error:
        run(root, images, recipe, trial=OUT_OF_REACH, output=f"pruned-{time()}", **more)
    assert [epoch["epoch"] for epoch in error.value.history] == [1, 2, 3]
    [tracked] = runs(root)
    assert tracked.info.status == "KILLED"
    assert tracked.data.tags["mlflow.parentRunId"] == "parent"
    assert tracked.data.metrics["epoch"] == 3


def runs(root):
    client = tracking.client(Project(root))
    experiment = client.get_experiment_by_name("sides")
    return client.search_runs([experiment.experiment_id])


def test_a_pruned_training_ends_at_once_and_goes_on_from_there(images, tmp_path, steps):
    prune(tmp_path, images, RECIPE)
    assert steps == list(range(18))  # three epochs of 96 images
    prune(tmp_path, images, RECIPE)  # without a step
    assert len(steps) == 18
    trained = run(tmp_path, images, RECIPE)
    assert steps == list(range(30))
    assert [tracked.info.status for tracked in runs(tmp_path)] == ["FINISHED"]
    assert trained.facts == run(tmp_path / "whole", images, RECIPE).facts


FUNCTION = Train(function="examples.ported:train", epochs=5, batch_size=16)
PORTED = Model(family="custom", factory="examples.network:build_model", arguments={"channels": 1})


def test_a_function_of_the_user_s_ends_at_its_report(images, tmp_path):
    prune(tmp_path, images, FUNCTION, model=PORTED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [{"recipe": RECIPE}, {"recipe": FUNCTION, "model": PORTED}], ids=["own", "function"]
)
def test_two_workers_end_together(images, tmp_path, ray_session, given):
    prune(tmp_path, images, scale=Scale(workers=2), **given)
