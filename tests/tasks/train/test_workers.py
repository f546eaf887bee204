"""Workers on Ray: the same training as in one process, also when a worker is killed."""

import pytest

from retrain.workload import Augment, Model, Scale, Train
from tests.tasks.train.helpers import (
    assert_alike,
    killing_a_worker,
    run,
    validated,
    write_prepared,
)

pytestmark = pytest.mark.slow

RECIPE = Train(epochs=2, batch_size=16, lr=0.003, augment=Augment(shift=1))
STEPS = 300
ALONE = Scale(checkpoint_seconds=0.1)
SCALE = ALONE.model_copy(update={"workers": 2})


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return write_prepared(
        tmp_path_factory.mktemp("many") / "images", rows=STEPS // 2 * RECIPE.batch_size
    )


@pytest.fixture(scope="module")
def two_workers(ray_session, tmp_path_factory, many):
    return run(tmp_path_factory.mktemp("two"), many, RECIPE, scale=SCALE)


def test_two_workers_train_as_one_process_does(two_workers, many, tmp_path):
    assert two_workers.facts["val_accuracy"] > 0.9
    assert_alike(two_workers, run(tmp_path, many, RECIPE, scale=ALONE))


def test_a_killed_worker_is_replaced_and_the_training_ends_the_same(two_workers, many, tmp_path):
    with killing_a_worker(tmp_path) as processes:
        trained = run(tmp_path, many, RECIPE, scale=SCALE)
    assert not [name for name in processes if "Preemption" in name]
    assert trained.facts == two_workers.facts
    assert trained.model_files() == two_workers.model_files()


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


DIVIDED = Scale(workers=2, strategy="fsdp", checkpoint_seconds=1e-9)


def test_a_divided_network_trains_as_a_whole_one_when_a_worker_is_killed(
    ray_session, images, tmp_path
):
    alone = run(tmp_path / "alone", images, RECIPE)
    with killing_a_worker(tmp_path):
        divided = run(tmp_path, images, RECIPE, scale=DIVIDED)
    assert_alike(divided, alone)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_three_workers_end_with_the_same_bits_when_one_is_killed(
    ray_session, images, tmp_path, strategy
):
    # Of three numbers, unlike of two, the sum depends on the order.
    recipe = RECIPE.model_copy(update={"epochs": 4})
    scale = DIVIDED.model_copy(update={"workers": 3, "strategy": strategy})
    whole = run(tmp_path / "whole", images, recipe, scale=scale)
    with killing_a_worker(tmp_path):
        resumed = run(tmp_path, images, recipe, scale=scale)
    assert resumed.facts == whole.facts
    assert resumed.model_files() == whole.model_files()
