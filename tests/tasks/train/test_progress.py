"""What is logged of a training while it runs."""

from threading import Event

import pytest

from tasks.train import step
from tasks.train.job import PROGRESS
from tasks.train.session import write_progress

SPEED = {"epoch": 1, "epochs": 2, "images_per_second": 7.0, "loss": 1.0, "seconds_left": 9.0}
EPOCH = {"epoch": 1, "val_loss": 0.5, "images_per_second": 7.0}


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
