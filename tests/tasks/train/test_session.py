"""What is kept of a training: the newest checkpoints and the best, and the history."""

from pathlib import Path

import pytest
import torch

from retrain.workload import Best, Scale, Train
from tasks.train.job import TrainingJob
from tasks.train.session import CHECKPOINTS, Session
from tests.tasks.train.helpers import SMALL, run

RECIPE = Train(epochs=4, batch_size=16, lr=0.01)


@pytest.fixture
def job(images, tmp_path):
    folders = dict.fromkeys(("pulled", "root", "scratch", "output"), tmp_path)
    return TrainingJob(
        SMALL, RECIPE, Scale(threads=1), images=images, start=None, streams=False, **folders
    )


def report(session: Session, *accuracies: float) -> None:
    for accuracy in accuracies:
        step = 6 * (len(session.reports) + 1)
        metrics = {"epoch": len(session.reports) + 1, "seconds": 1.0, "val_accuracy": accuracy}
        session.report(metrics, {"step": step, "weights": {"a": torch.tensor(accuracy)}})


def kept(job: TrainingJob) -> list[int]:
    return sorted(int(folder.name) for folder in (job.scratch / CHECKPOINTS).iterdir())


def damage(folder: Path) -> None:
    [file] = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-10])


def test_the_two_newest_checkpoints_and_the_best_are_kept(job):
    report(session := Session(job), 0.5, 0.9, 0.6, 0.7, 0.8)
    assert kept(job) == [2, 4, 5]
    again = Session(job)
    assert (again.reports, again.step) == (session.reports, 30)
    assert again.best.metrics["epoch"] == 2
    assert again.latest()["step"] == 30


def test_an_epoch_whose_checkpoint_was_damaged_is_reported_again_and_can_be_the_best(job):
    report(Session(job), 0.5, 0.9)
    damage(Session(job).folder(2))
    session = Session(job)
    assert session.latest()["step"] == 6
    metrics = {"epoch": 2, "seconds": 1.0, "val_accuracy": 0.9}
    session.report(metrics, {"step": 12})
    assert [each["epoch"] for each in session.history] == [1, 2]
    assert session.best.checkpoint == 3
    assert Session(job).latest()["step"] == 12


def test_a_checkpoint_that_was_not_reported_any_more_is_replaced(job):
    report(session := Session(job), 0.5)
    session.folder(2).mkdir()
    (session.folder(2) / "half").touch()
    report(Session(job), 0.6)
    assert kept(job) == [1, 2]
    assert Session(job).latest()["weights"]["a"] == torch.tensor(0.6)


def test_a_training_whose_best_checkpoint_is_damaged_names_what_to_remove(images, tmp_path):
    worst = RECIPE.model_copy(update={"best": Best(metric="val_loss", mode="max")})  # the first
    assert run(tmp_path, images, worst).facts["best_epoch"] == 1
    damage(tmp_path / "scratch" / CHECKPOINTS / "00000001")
    with pytest.raises(ValueError, match=r"best epoch is damaged\. Remove .*scratch, and train"):
        run(tmp_path, images, worst, output="again")
