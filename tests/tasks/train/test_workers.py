"""Workers on Ray: the same training as in one process, also when a worker is killed."""

import pytest

from retrain.workload import Augment, Model, Scale, Train
from tests.tasks.train.helpers import assert_alike, killing_a_worker, run, validated

pytestmark = pytest.mark.slow

RECIPE = Train(epochs=2, batch_size=16, lr=0.003, augment=Augment(shift=1))
strategies = pytest.mark.parametrize("strategy", ["ddp", "fsdp"])


@strategies
def test_two_workers_train_as_one_process_does(ray_session, images, tmp_path, strategy):
    two = run(tmp_path / "two", images, RECIPE, scale=Scale(workers=2, strategy=strategy))
    assert_alike(two, run(tmp_path / "one", images, RECIPE))


BATCH_NORMS = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8], "depths": [1],
    "layer_type": "basic",
}  # fmt: skip
IDLE = "tests.tasks.train.functions:with_an_idle_parameter"


@pytest.mark.parametrize(
    ("model", "frozen"),
    [
        (Model(family="auto", config=BATCH_NORMS), 1),
        (Model(family="custom", factory=IDLE), 0),
    ],
)
def test_workers_train_any_network_and_evaluate_what_is_saved(
    ray_session, images, tmp_path, model, frozen
):
    recipe = RECIPE.model_copy(update={"freeze_epochs": frozen})  # so DDP is made anew
    trained = run(tmp_path, images, recipe, model=model, scale=Scale(workers=2))
    loss, *_ = validated(trained, images)
    assert trained.facts["val_loss"] == pytest.approx(loss, rel=1e-5)


@strategies
def test_three_workers_end_with_the_same_bits_when_one_is_killed(
    ray_session, images, tmp_path, strategy
):
    # Of three numbers, unlike of two, the sum depends on the order.
    recipe = RECIPE.model_copy(update={"epochs": 4})
    scale = Scale(workers=3, strategy=strategy, checkpoint_seconds=1e-9)
    whole = run(tmp_path / "whole", images, recipe, scale=scale)
    with killing_a_worker(tmp_path) as processes:
        resumed = run(tmp_path, images, recipe, scale=scale)
    assert not [name for name in processes if "Preemption" in name]
    assert resumed.facts == whole.facts
    assert resumed.model_files() == whole.model_files()
