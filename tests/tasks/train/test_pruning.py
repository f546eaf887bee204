"""A trial of a search ends when it is behind, in every loop, on all workers, and goes on later."""

from time import time

import pytest

from retrain.errors import PrunedError
from retrain.project import Project
from retrain.registry import tracking
from retrain.step import TrialContext
from retrain.workload import Model, Scale, Train
from tests.tasks.train.helpers import run

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
