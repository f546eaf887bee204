"""What is shown and logged of a training while it runs."""

import json
import threading
import time

import pytest
import torch

from retrain.runs.console import Progress
from tasks.train import progress
from tasks.train.progress import FILE, Meter, followed

EPOCH = {"epoch": 1, "val_loss": 0.5, "images_per_second": 7.0}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(progress, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)


def wait_for(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def nothing(_):
    """Neither shows nor logs."""


def test_what_the_meter_measures_is_shown(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress, "TICK_SECONDS", 1.0)
    monkeypatch.setattr(progress, "monotonic", lambda: clock[0])
    meter = Meter(tmp_path, epochs=3, per_epoch=10, batch=8, step=10)
    clock[0] = 0.9
    meter.tick(14, torch.tensor(13.0), [EPOCH])
    assert not (tmp_path / FILE).exists()  # it does not write at every step
    clock[0] = 2.0
    meter.tick(15, torch.tensor(10.0), [EPOCH])
    written = json.loads((tmp_path / FILE).read_text())
    assert Progress(**written["progress"]) == Progress(2, 3, 0.5, 5 * 8 / 2.0, 2.0, 6.0)
    assert written["history"] == [EPOCH]
    clock[0] = 3.0
    meter.tick(20, torch.tensor(40.0), [EPOCH])
    assert json.loads((tmp_path / FILE).read_text())["progress"]["images_per_second"] == 40.0


def test_epochs_are_logged_while_the_training_runs_and_again_after_a_failure(tmp_path):
    tries = []

    def log(history):
        tries.append(len(history))
        if len(tries) < 3:
            raise ConnectionError("away")

    meter = Meter(tmp_path, epochs=2, per_epoch=10, batch=8, step=0)
    with followed(tmp_path, nothing, log):
        meter.write(10, 1.0, 7.0, [EPOCH])
        wait_for(lambda: len(tries) == 1)
        meter.write(11, 0.9, 7.0, [EPOCH])
        wait_for(lambda: len(tries) == 2)
        meter.write(20, 0.9, 7.0, [EPOCH])
        wait_for(lambda: len(tries) == 3)
        meter.write(20, 0.9, 7.0, [EPOCH, EPOCH])
    assert tries[:3] == [1, 1, 1]
    assert tries[-1] == 2


def test_a_log_that_still_fails_at_the_end_fails_the_step(tmp_path):
    def log(history):
        raise ConnectionError("away")

    with pytest.raises(ConnectionError, match="away"), followed(tmp_path, nothing, log):
        Meter(tmp_path, epochs=1, per_epoch=10, batch=8, step=0).write(10, 1.0, 7.0, [EPOCH])


def test_an_error_of_the_training_ends_the_following(tmp_path):
    before = threading.active_count()
    (tmp_path / FILE).write_text("of the training that was interrupted")
    with pytest.raises(ValueError, match="diverged"), followed(tmp_path, nothing, nothing):
        raise ValueError("diverged")
    assert threading.active_count() == before
