"""What is kept of a training: the newest checkpoints and the best, and the history."""

import json
from dataclasses import replace

import pytest
import torch

from retrain.workload import Scale
from tasks.train.job import PROGRESS
from tasks.train.session import UNREPORTED, Meter, Session
from tasks.train.train import best_network
from tests.tasks.train.helpers import kept


def report(session, *accuracies):
    for accuracy in accuracies:
        number = len(session.reports) + 1
        metrics = {"epoch": number, "seconds": 2.0, "val_accuracy": accuracy, "loss": 0.5}
        session.report(metrics, {"step": 6 * number, "weights": {"a": torch.tensor(accuracy)}})


def damage(folder, kind="cut short"):
    [file] = folder.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content[:-10] if kind == "cut short" else content)


def progress(job):
    return json.loads((job.scratch / PROGRESS).read_text())


def test_the_two_newest_checkpoints_and_the_best_are_kept(job):
    report(session := Session(job), 0.5, 0.9, 0.6)
    told = progress(job)
    assert told["text"] == "epoch 3/4  loss 0.500  48 images/s  2 s left"
    assert (told["fraction"], told["seconds_left"], told["history"]) == (0.75, 2, session.history)
    report(session, 0.7, 0.8)
    told = progress(job)
    assert (told["fraction"], told["seconds_left"], told["text"][:9]) == (1, 0, "epoch 4/4")
    assert kept(job.scratch) == [2, 4, 5]
    again = Session(job)
    assert (again.reports, again.step) == (session.reports, 30)
    assert again.best.metrics["epoch"] == 2
    assert again.latest()["step"] == 30


def test_a_function_of_the_user_s_reports_no_steps_and_need_not_tell_its_loss(job):
    own = job.scratch / "own"
    own.mkdir()
    session = Session(job)
    session.keep({"epoch": 1, "seconds": 1.0, "val_accuracy": 0.6}, own)
    assert (session.best.metrics["epoch"], session.step) == (1, 0)
    assert "loss" not in progress(job)["text"]


@pytest.mark.parametrize(
    ("workers", "seconds", "steps"),
    [(1, 1e-9, [*range(1, 25)]), (2, 1e-9, [10, 20]), (1, 600.0, [])],
)
def test_several_workers_ask_each_tenth_step_whether_a_checkpoint_is_due(
    job, workers, seconds, steps
):
    job = replace(job, scale=Scale(threads=1, checkpoint_seconds=seconds))
    session = Session(job, world_size=workers)
    assert [step for step in range(1, 25) if session.checkpoint_is_due(step)] == steps


def test_the_meter_tells_the_recent_speed_and_loss_and_the_time_that_is_left(job, monkeypatch):
    """Three epochs of ten steps, with 16 images each; the first step took five seconds."""
    meter, now = Meter(job.scratch, 3, 10, 16), [0.0]
    monkeypatch.setattr("tasks.train.session.monotonic", lambda: now[0])
    for step, time, losses in ((1, 5.0, 3.0), (3, 5.1, 9.0), (5, 7.0, 15.0), (13, 11.0, 6.0)):
        now[0] = time
        meter.tick(step, torch.tensor(losses), [{"epoch": 1}] if step > 10 else [])
        if step == 3:
            assert not (job.scratch / PROGRESS).exists()  # too soon
    # Eight steps in the last four seconds; twelve in six since the first.
    assert progress(job) == {
        "epochs": 3, "fraction": 13 / 30, "seconds_left": 8.5, "history": [{"epoch": 1}],
        "text": "epoch 2/3  loss 2.000  32 images/s  8 s left",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["cut short", "a flipped bit"])
def test_an_epoch_whose_checkpoint_was_damaged_is_reported_again_and_can_be_the_best(job, kind):
    report(Session(job), 0.5, 0.9)
    damage(Session(job).folder(2), kind)
    session = Session(job)
    assert session.latest()["step"] == 6
    metrics = {"epoch": 2, "seconds": 1.0, "val_accuracy": 0.9}
    session.report(metrics, {"step": 12})
    assert [each["epoch"] for each in session.history] == [1, 2]
    assert session.best.checkpoint == 3
    assert Session(job).latest()["step"] == 12


def test_a_checkpoint_that_was_not_reported_any_more_is_replaced(job):
    report(session := Session(job), 0.5)
    for folder in (session.folder(2), job.scratch / UNREPORTED):  # which were cut off
        (folder / "half").mkdir(parents=True)
    report(Session(job), 0.6)
    assert kept(job.scratch) == [1, 2]
    assert Session(job).latest()["weights"]["a"] == torch.tensor(0.6)


def test_a_best_checkpoint_that_is_damaged_names_what_to_remove(job):
    report(session := Session(job), 0.9, 0.5)
    damage(session.folder(1))
    with pytest.raises(ValueError, match=rf"damaged\. Remove {job.scratch}, and train again"):
        best_network(session)


def test_all_workers_have_the_history_that_one_of_them_keeps(job):
    report(session := Session(job, rank=1, world_size=2), 0.5)
    assert [epoch["val_accuracy"] for epoch in session.history] == [0.5]
    assert [*job.scratch.iterdir()] == []
