"""Two workers on Ray: the same training as in one process, also when a worker is killed."""

import time
from pathlib import Path

import pytest
import ray.train
import torch.distributed
from ray.train import TrainingFailedError

from retrain.caching import is_transient
from retrain.workload import Augment, Model, Scale, Train
from tasks.train import loop
from tasks.train.job import TrainingJob
from tasks.train.launch import launch
from tests.tasks.train.helpers import (
    SMALL,
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
MASK_TOKEN = {  # which no gradient reaches
    "model_type": "dinov2", "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2,
}  # fmt: skip
ANY = [
    Model(family="auto", config=BATCH_NORMS),
    Model(family="auto", config=MASK_TOKEN),
    Model(family="custom", factory="tests.tasks.train.functions:with_an_idle_parameter"),
]


@pytest.mark.parametrize(("model", "frozen"), zip(ANY, (1, 1, 0), strict=True))
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


def raising_on_the_last_rank(job):
    """A worker's function: the last worker fails while the others wait for it."""
    context = ray.train.get_context()
    rank = context.get_world_rank()
    with Path(job.scratch, f"tries-of-{rank}").open("a", encoding="utf-8") as tries:
        tries.write("x")
    if rank == context.get_world_size() - 1:
        raise job.bounds["error"]
    torch.distributed.all_reduce(torch.zeros(1))


def train_with(tmp_path, images, monkeypatch, error, scale=SCALE):
    """Trains with the function above."""
    job = TrainingJob(
        model=SMALL,
        hyperparameters=RECIPE.model_copy(update={"precision": "fp32"}),
        scale=scale.model_copy(update={"threads": 1}),
        images=images,
        pulled=tmp_path,
        start=None,
        root=tmp_path,
        scratch=tmp_path / "scratch",
        output=tmp_path,
        streams=False,
        bounds={"error": error},
    )
    job.scratch.mkdir(exist_ok=True)
    monkeypatch.setattr(loop, "train", raising_on_the_last_rank)
    launch(job)


def test_a_verdict_on_one_worker_ends_all_at_once_and_is_not_tried_again(
    ray_session, tmp_path, images, monkeypatch
):
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"^no such thing$"):
        train_with(tmp_path, images, monkeypatch, ValueError("no such thing"))
    assert time.monotonic() - began < 120  # two workers start in half a minute on a busy machine
    assert (tmp_path / "scratch" / "tries-of-1").read_text() == "x"


def test_other_errors_are_tried_as_often_as_configured_by_ray_and_no_more(
    ray_session, tmp_path, images, monkeypatch
):
    scale = SCALE.model_copy(update={"max_failures": 0, "workers": 1})
    with pytest.raises(TrainingFailedError, match="away") as raised:
        train_with(tmp_path, images, monkeypatch, ConnectionError("away"), scale)
    assert (tmp_path / "scratch" / "tries-of-0").read_text() == "x"
    assert not is_transient(raised.value)
