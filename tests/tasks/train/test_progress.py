"""What is shown and logged of a training while it runs."""

import json
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


def writing_to(folder):
    return lambda name, text: (folder / name).write_text(text)


def wait_for(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_what_the_meter_measures_is_shown(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress, "TICK_SECONDS", 1.0)
    monkeypatch.setattr(progress, "monotonic", lambda: clock[0])
    meter = Meter(writing_to(tmp_path), epochs=3, per_epoch=10, batch=8)
    clock[0] = 300.0
    meter.tick(11, torch.tensor(2.0), [EPOCH])  # the first step, which took long, tells nothing
    clock[0] = 300.9
    meter.tick(14, torch.tensor(13.0), [EPOCH])
    assert not (tmp_path / FILE).exists()  # it does not write at every step
    clock[0] = 302.0
    meter.tick(15, torch.tensor(10.0), [EPOCH])
    written = json.loads((tmp_path / FILE).read_text())
    assert Progress(**written["progress"]) == Progress(2, 3, 0.5, 4 * 8 / 2.0, 2.0, 7.5)
    assert written["history"] == [EPOCH]


def test_epochs_are_logged_while_the_training_runs_and_again_after_a_failure(tmp_path):
    tries = []

    def log(history):
        tries.append(len(history))
        if len(tries) != 2:
            raise ConnectionError("away")

    tell = writing_to(tmp_path)
    (tmp_path / FILE).write_text("of the training that was interrupted")
    with pytest.raises(ConnectionError), followed(tmp_path, lambda *_: None, log):
        for tried in (1, 2):
            progress.write(tell, Progress(1, 2, tried / 4, 7.0, 1.0, 9.0), [EPOCH])
            wait_for(lambda count=tried: len(tries) == count)
        progress.write(tell, Progress(2, 2, 1.0, 7.0, 0.9, 0.0), [EPOCH, EPOCH])
    assert (tries[:2], tries[-1]) == ([1, 1], 2)  # the last, after the end, raises its error
