import json
import threading
import time

import pytest
import torch

from retrain.runs.console import Progress
from tasks.train import progress
from tasks.train.progress import Meter, followed

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


def test_what_the_meter_measures_is_shown(tmp_path):
    shown = []
    meter = Meter(tmp_path / "progress", epochs=2, steps=20, batch=8, step=10, loss_sum=3.0)
    with followed(tmp_path / "progress", shown.append, lambda history: None):
        meter.go_on()
        time.sleep(0.02)
        meter.tick(15, torch.tensor(13.0), [EPOCH])
        wait_for(lambda: shown)
    [now] = {each.fraction: each for each in shown}.values()
    assert (now.epoch, now.epochs, now.fraction, now.loss) == (2, 2, 0.75, 2.0)
    assert 0 < now.images_per_second <= 5 * 8 / 0.02
    assert now.seconds_left >= 0.02


def test_the_meter_does_not_write_at_every_step(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "TICK_SECONDS", 60.0)
    meter = Meter(tmp_path / "progress", epochs=1, steps=10, batch=8, step=0, loss_sum=0.0)
    meter.tick(1, torch.tensor(1.0), [])
    assert not (tmp_path / "progress").exists()


def test_a_window_reaches_over_short_epochs_without_the_pauses_between_them(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress, "TICK_SECONDS", 1.0)
    monkeypatch.setattr(progress, "monotonic", lambda: clock[0])
    meter = Meter(tmp_path / "progress", epochs=3, steps=6, batch=8, step=0, loss_sum=0.0)
    for epoch in range(3):
        meter.go_on()
        for step in (1, 2):
            clock[0] += 0.3
            meter.tick(2 * epoch + step, torch.tensor(2.0 * step), [EPOCH] * epoch)
        meter.pause(4.0)
        clock[0] += 100
    written = json.loads((tmp_path / "progress").read_text())["progress"]
    assert written["fraction"] == pytest.approx(4 / 6)
    assert written["images_per_second"] == pytest.approx(8 / 0.3)
    assert written["loss"] == pytest.approx(2.0)


def test_a_line_says_once_where_an_interrupted_training_continues(tmp_path, caplog):
    (tmp_path / "progress").write_text("of the training that was interrupted")
    meter = Meter(tmp_path / "progress", epochs=40, steps=400, batch=8, step=113, loss_sum=0.0)
    with followed(tmp_path / "progress", lambda now: None, lambda history: None):
        meter.write(114, 1.0, [EPOCH] * 11)
        wait_for(lambda: caplog.messages)
        meter.write(400, 1.0, [EPOCH] * 40)
    line = "train continues at epoch 12 of 40, from its last checkpoint."
    assert caplog.messages == [line]


@pytest.mark.parametrize("step", [0, 20])
def test_nothing_is_said_of_a_training_that_begins_or_was_over(tmp_path, caplog, step):
    meter = Meter(tmp_path / "progress", epochs=2, steps=20, batch=8, step=step, loss_sum=0.0)
    with followed(tmp_path / "progress", lambda now: None, lambda history: None):
        meter.write(20, 1.0, [EPOCH] * 2)
    assert caplog.messages == []


def test_epochs_are_logged_while_the_training_runs_and_at_its_end(tmp_path):
    logged = []
    meter = Meter(tmp_path / "progress", epochs=2, steps=20, batch=8, step=0, loss_sum=0.0)
    with followed(tmp_path / "progress", lambda now: None, logged.append):
        meter.write(10, 1.0, [EPOCH])
        wait_for(lambda: logged)
        meter.write(20, 1.0, [EPOCH, EPOCH])
    assert logged[0] == [EPOCH]
    assert logged[-1] == [EPOCH, EPOCH]


def test_a_log_that_fails_for_a_while_is_tried_again(tmp_path):
    tries = []

    def log(history):
        tries.append(len(history))
        if len(tries) < 3:
            raise ConnectionError("away")

    meter = Meter(tmp_path / "progress", epochs=2, steps=20, batch=8, step=0, loss_sum=0.0)
    with followed(tmp_path / "progress", lambda now: None, log):
        meter.write(10, 1.0, [EPOCH])
        wait_for(lambda: len(tries) == 1)
        meter.write(11, 0.9, [EPOCH])
        wait_for(lambda: len(tries) == 2)
    assert tries == [1, 1, 1]


def test_a_log_that_still_fails_at_the_end_fails_the_step(tmp_path):
    def log(history):
        raise ConnectionError("away")

    meter = Meter(tmp_path / "progress", epochs=1, steps=10, batch=8, step=0, loss_sum=0.0)
    with (
        pytest.raises(ConnectionError, match="away"),
        followed(tmp_path / "progress", lambda now: None, log),
    ):
        meter.write(10, 1.0, [EPOCH])


def test_an_error_of_the_training_ends_the_following(tmp_path):
    before = threading.active_count()
    with (
        pytest.raises(ValueError, match="diverged"),
        followed(tmp_path / "progress", lambda now: None, lambda history: None),
    ):
        raise ValueError("diverged")
    assert threading.active_count() == before


def test_the_progress_is_what_the_console_takes(tmp_path):
    shown = []
    meter = Meter(tmp_path / "progress", epochs=3, steps=30, batch=8, step=0, loss_sum=0.0)
    with followed(tmp_path / "progress", shown.append, lambda history: None):
        meter.write(30, 0.1, [EPOCH] * 3)
    assert shown[-1] == Progress(3, 3, 1.0, 7.0, 0.1, 0.0)  # too short to be measured
