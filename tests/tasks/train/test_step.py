"""What a training leaves, its run in MLflow, its batches, and what is told while it runs."""

from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import torch

import models
from models.network import Network
from retrain.registry import tracking
from retrain.workload import Augment, Scale, Train
from tasks.data.shards import open_prepared
from tasks.train import step
from tasks.train.augmentation import Augmentation
from tasks.train.data_loading import BatchSampler, SplitDataset
from tasks.train.job import PROGRESS, TrainingJob
from tasks.train.recipe import temperature
from tasks.train.session import write_progress
from tests.tasks.train.helpers import (
    KEY,
    LABELS,
    SMALL,
    assert_alike,
    kept,
    run,
    validated,
    write_prepared,
)  # fmt: skip

RECIPE = Train(epochs=12, batch_size=16, lr=0.01, augment=Augment(shift=1))
DROPOUT = SMALL.model_copy(update={"dropout": 0.1})


@pytest.fixture(scope="module")
def trained(tmp_path_factory, images):
    return run(tmp_path_factory.mktemp("trained"), images, RECIPE, model=DROPOUT)


def test_the_network_learns_and_the_best_epoch_is_kept(trained, images):
    best = max(trained.history, key=lambda epoch: (epoch["val_accuracy"], -epoch["val_loss"]))
    assert best["val_accuracy"] > 0.9
    assert trained.facts["best_epoch"] == best["epoch"]
    found = trained.facts["val_loss"], trained.facts["val_accuracy"]
    assert found == (best["val_loss"], best["val_accuracy"])
    assert validated(trained, images) == pytest.approx(found, rel=1e-4)
    # One of each epoch, soon after.
    assert kept(trained.project.root / "scratch")[-1] == RECIPE.epochs
    network = models.load(trained.folder / "model").module
    assert network.temperature == trained.facts["temperature"] != 1
    assert network.temperature == temperature(network, SplitDataset(images, "val"), 33, "fp32")


def test_the_first_images_as_the_network_saw_them_are_beside_the_training(images, tmp_path):
    recipe = RECIPE.model_copy(update={"epochs": 2, "augment": Augment(shift=1, mixup=0.4)})
    first = np.load(run(tmp_path, images, recipe).folder / "report" / "first_batch.npz")
    split, batches = open_prepared(images).split("train"), BatchSampler(96, 16, 0, 0, 1)
    rows = batches.epoch(0)[0]
    given = torch.from_numpy(split.images[rows]), torch.from_numpy(split.labels[rows])
    seen, ((labels, share), (others, rest)) = Augmentation(recipe.augment, batches, 8)(*given, 0)
    assert first["images"].dtype == np.uint8
    assert (first["images"] == seen[:6].round().byte().numpy()).all()
    assert first["labels"].tolist() == [
        f"{LABELS[label]} ({share:.0%}) and {LABELS[other]} ({rest:.0%})"
        for label, other in zip(labels[:6], others[:6], strict=True)
    ]


def test_mlflow_has_a_finished_run_with_what_decides_it_and_each_epoch(trained):
    client = tracking.client(trained.project)
    run = client.get_run(trained.run_id)
    assert (run.info.status, run.data.tags["retrain.key"]) == ("FINISHED", KEY)
    expected = {"train.lr": "0.01", "model.family": "vit", "scale.workers": "0"}
    assert expected.items() <= run.data.params.items()
    assert "scale.checkpoint_seconds" not in run.data.params  # may change from try to try
    logged = client.get_metric_history(trained.run_id, "val_accuracy")
    assert [each.value for each in logged] == [epoch["val_accuracy"] for epoch in trained.history]


def test_fewer_images_than_a_batch_make_one_batch(tmp_path, steps):
    few = write_prepared(tmp_path / "images", rows=5, val=3)
    trained = run(tmp_path / "run", few, Train(epochs=2, batch_size=16))
    assert steps == [0, 1]
    assert trained.facts["batch_size"] == 5
    with pytest.raises(ValueError, match=r"5 training images for 6 workers: make scale\.workers"):
        run(tmp_path / "six", few, Train(epochs=2, batch_size=16), scale=Scale(workers=6))


@pytest.mark.parametrize("sizes", [(2**50,), (2**33, 2**33)])
def test_memory_that_cannot_be_had_is_the_users_to_mend(images, tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(TrainingJob, "build", lambda *_: torch.empty(sizes))
    with pytest.raises(ValueError, match=r"not enough memory to train .* train\.micro_batch"):
        run(tmp_path, images, RECIPE)


def test_a_batch_in_parts_takes_the_same_steps_and_no_more_images_at_once(
    images, tmp_path, monkeypatch
):
    recipe = RECIPE.model_copy(update={"epochs": 2})
    whole = run(tmp_path / "whole", images, recipe)
    micro_batch, forward = set(), Network.forward

    def counted(self, images):
        micro_batch.add(len(images))
        return forward(self, images)

    monkeypatch.setattr(Network, "forward", counted)
    parts = run(tmp_path / "parts", images, recipe.model_copy(update={"micro_batch": 5}))
    assert max(micro_batch) == 5  # in the validation too
    assert parts.model_files() != whole.model_files()  # sums in another order
    assert_alike(parts, whole)


def test_a_batch_that_cannot_be_divided_among_the_workers_is_smaller(job):
    assert [*step.notices(replace(job, scale=Scale(workers=2)), None)] == []
    assert [*step.notices(replace(job, scale=Scale(workers=3)), None)] == [
        "train takes batches of 15 images: 16 cannot be divided among 3 workers."
    ]


EPOCH = {"epoch": 1, "val_loss": 0.5, "images_per_second": 7.0}
LINE = "train  epoch {}/3  val_loss 0.5000  9 s left"


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ([(1.9, 1, False), (2.0, 1, False), (5.0, 1, False)], [LINE.format(1)]),
        ([(1.0, 2, False), (1.9, 3, True)], []),  # no line is due in so short a training
        ([(2.0, 1, False), (3.9, 2, False), (3.9, 3, True)], [LINE.format(1), LINE.format(3)]),
        ([(2.0, 1, False), (61.9, 1, False), (62.0, 1, False)], [LINE.format(1), "train  half"]),
    ],
)
def test_an_epoch_is_told_two_seconds_after_the_last_and_what_is_left_each_minute(
    monkeypatch, caplog, shown, said
):
    """Shown are, after so many seconds, the epochs so far, and whether the training is over."""
    now = [0.0]
    monkeypatch.setattr(step, "monotonic", lambda: now[0])
    lines, told = step.EpochLines(), {"epochs": 3, "seconds_left": 9.0, "text": "half"}
    for seconds, epochs, is_over in shown:
        now[0] = seconds
        lines.show(told | {"history": [EPOCH] * epochs}, is_over=is_over)
    assert caplog.messages == said


SPEED = {"epoch": 1, "epochs": 2, "images_per_second": 7.0, "loss": 1.0, "seconds_left": 9.0}


def test_epochs_are_logged_while_the_training_runs_and_again_after_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(step, "LOG_SECONDS", 0.0)
    tries, tried = [], Event()

    def log(history):
        tries.append(len(history))
        tried.set()
        if len(tries) != 2:
            raise ConnectionError("away")

    (tmp_path / PROGRESS).write_text("of the training that was interrupted")
    with pytest.raises(ConnectionError), step.follow_progress(tmp_path, lambda *_: None, log):
        for fraction in (0.25, 0.5):
            write_progress(tmp_path, [EPOCH], fraction=fraction, **SPEED)
            assert tried.wait(10)
            tried.clear()
        write_progress(tmp_path, [EPOCH, EPOCH], fraction=1.0, **SPEED)
    assert (tries[:2], tries[-1]) == ([1, 1], 2)  # the last, after the end, raises its error
