"""A trial of a search ends when it is behind, in every loop, on all workers, and goes on later."""

from time import time

import pytest

from retrain import tracking
from retrain.errors import PrunedError
from retrain.project import Project
from retrain.step import TrialContext
from retrain.workload import Best, Model, Scale, Train
from tasks.train.selection import best_so_far, pruned_at
from tests.tasks.train.helpers import run

RECIPE = Train(epochs=5, batch_size=16, lr=0.01)
OUT_OF_REACH = TrialContext("trial 4", "parent", {1: 0.0, 3: 1.1})  # the first is reached


def epochs(*accuracies):
    return [{"epoch": n, "val_accuracy": each} for n, each in enumerate(accuracies, 1)]


def test_a_trial_is_judged_by_its_best_epoch_so_far():
    history = epochs(0.5, 0.3, 0.6)
    assert best_so_far(history, Best()) == [0.5, 0.5, 0.6]
    assert pruned_at(history, Best(), {2: 0.5, 3: 0.6}) is None  # as good as others is enough
    assert pruned_at(history, Best(), {2: 0.51, 3: 0.9}) == 2
    assert pruned_at(history, Best(), {4: 0.9}) is None
    losses = [{"epoch": 1}, {"epoch": 2, "loss": 0.5}]  # a function need not report it each time
    assert best_so_far(losses, Best(metric="loss")) == [float("-inf"), -0.5]


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


PORTED = Model(family="custom", factory="examples.network:build_model", arguments={"channels": 1})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_of_the_user_s_ends_at_its_report(images, tmp_path, ray_session, workers):
    recipe = Train(function="examples.ported:train", epochs=5, batch_size=16)
    prune(tmp_path, images, recipe, model=PORTED, scale=Scale(workers=workers))


def test_two_workers_end_together(images, tmp_path, ray_session):
    prune(tmp_path, images, RECIPE, scale=Scale(workers=2))
