"""A training that is interrupted goes on where it was and ends with the same bits."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from math import isfinite
from pathlib import Path

import pytest
import torch

from retrain import tracking
from retrain.workload import Augment, Scale, Train
from tasks.train import checkpoint
from tests.tasks.train.helpers import SMALL, run, write_prepared

ROOT = Path(__file__).parents[3]
RECIPE = Train(epochs=4, batch_size=16, lr=0.01, augment=Augment(shift=1, flip=True))
PER_EPOCH = 6
OFTEN = Scale(checkpoint_seconds=1e-9, keep_checkpoints=3)  # after every step
DROPOUT = SMALL.model_copy(update={"dropout": 0.1})


# 96 images of 64 bytes: in windows of two batches.
FEW_IN_MEMORY = Scale(checkpoint_seconds=1e-9, memory_gb=96 * 64 * 0.7 / 1e9)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, images):
    return run(tmp_path_factory.mktemp("undisturbed"), images, RECIPE, model=DROPOUT)


class InterruptedTrainingError(Exception):
    pass


@pytest.fixture
def interrupted(images, tmp_path, monkeypatch):
    """A training that was stopped before step 15, in its third epoch, with a checkpoint of each."""
    from tasks.train.loops import torch as torch_loop

    learning_rate = torch_loop.learning_rate

    def failing(step, *others):
        if step == 2 * PER_EPOCH + 3:
            raise InterruptedTrainingError
        return learning_rate(step, *others)

    with monkeypatch.context() as patched:
        patched.setattr(torch_loop, "learning_rate", failing)
        with pytest.raises(InterruptedTrainingError):
            run(tmp_path, images, RECIPE, model=DROPOUT, scale=OFTEN, output="interrupted")
    return tmp_path


def test_it_goes_on_from_the_last_checkpoint(interrupted, undisturbed, images, steps):
    resumed = run(interrupted, images, RECIPE, model=DROPOUT)
    assert steps == list(range(2 * PER_EPOCH + 3, 4 * PER_EPOCH))
    assert resumed.facts == undisturbed.facts
    assert resumed.model_files() == undisturbed.model_files()
    assert [epoch["train_loss"] for epoch in resumed.history] == [
        epoch["train_loss"] for epoch in undisturbed.history
    ]


@pytest.mark.parametrize("ingest", ["auto", "dataloader"])
def test_ctrl_c_leaves_a_checkpoint_from_which_it_goes_on(
    undisturbed, images, tmp_path, monkeypatch, steps, caplog, ingest
):
    from tasks.train.loops import torch as torch_loop

    recorded = torch_loop.learning_rate

    def interrupted(step, *others):
        if step == PER_EPOCH - 1:  # the last of its epoch, so that the next one is begun
            for each in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
                os.kill(each, signal.SIGINT)  # as a terminal sends it
        return recorded(step, *others)

    scale = Scale(ingest=ingest, data_cpus=int(ingest == "dataloader"))
    with monkeypatch.context() as patched:
        patched.setattr(torch_loop, "learning_rate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, images, RECIPE, model=DROPOUT, scale=scale, output="interrupted")
    said = f"train ended at step {PER_EPOCH + 1}. The same command goes on from there."
    assert said in caplog.messages
    steps.clear()
    resumed = run(tmp_path, images, RECIPE, model=DROPOUT, scale=scale)
    assert steps == list(range(PER_EPOCH + 1, 4 * PER_EPOCH))
    assert resumed.facts == undisturbed.facts


@pytest.mark.parametrize("stopped_at", [7, 8, 9, 15, 17])
def test_images_that_are_read_in_windows_are_gone_on_with_in_any_of_them(
    images, tmp_path, monkeypatch, steps, stopped_at
):
    from tasks.train.loops import torch as torch_loop

    recorded = torch_loop.learning_rate

    def failing(step, *others):
        if step == stopped_at:
            raise InterruptedTrainingError
        return recorded(step, *others)

    hyperparameters = RECIPE.model_copy(update={"precision": "bf16", "epochs": 3})
    whole = run(tmp_path / "whole", images, hyperparameters, model=DROPOUT, scale=FEW_IN_MEMORY)
    with monkeypatch.context() as patched:
        patched.setattr(torch_loop, "learning_rate", failing)
        with pytest.raises(InterruptedTrainingError):
            run(
                tmp_path,
                images,
                hyperparameters,
                model=DROPOUT,
                scale=FEW_IN_MEMORY,
                output="stopped",
            )
    steps.clear()
    resumed = run(tmp_path, images, hyperparameters, model=DROPOUT, scale=FEW_IN_MEMORY)
    assert steps == list(range(stopped_at, 3 * PER_EPOCH))
    assert resumed.facts == whole.facts
    assert resumed.model_files() == whole.model_files()


@pytest.mark.parametrize("damage", ["cut short", "a flipped bit"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    interrupted, undisturbed, images, steps, damage
):
    newest = max((interrupted / "scratch" / checkpoint.FOLDER).glob("*.pt"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content[:-100] if damage == "cut short" else content)
    resumed = run(interrupted, images, RECIPE, model=DROPOUT)
    assert steps == list(range(2 * PER_EPOCH + 2, 4 * PER_EPOCH))
    assert resumed.facts == undisturbed.facts


def test_a_training_that_was_over_is_not_repeated(undisturbed, images, steps):
    again = run(undisturbed.project.root, images, RECIPE, model=DROPOUT, output="again")
    assert steps == []
    assert again.facts == undisturbed.facts


@pytest.mark.parametrize("checkpoint_seconds", [1e-9, 3600], ids=["each step", "each epoch"])
def test_a_training_that_diverged_does_not_go_on_from_what_it_came_to(
    undisturbed, images, tmp_path, monkeypatch, steps, checkpoint_seconds
):
    from tasks.train.loops import torch as torch_loop

    recorded = torch_loop.learning_rate

    def exploding(step, *others):
        recorded(step, *others)
        return float("inf") if step == 2 * PER_EPOCH + 3 else 0.01

    scale = Scale(checkpoint_seconds=checkpoint_seconds)
    with monkeypatch.context() as patched:
        patched.setattr(torch_loop, "learning_rate", exploding)
        patched.setattr(checkpoint, "WORTH_SECONDS", 0.0)
        with pytest.raises(ValueError, match="diverged in epoch 3"):
            run(tmp_path, images, RECIPE, model=DROPOUT, scale=scale, output="diverged")
    assert steps[-1] >= 2 * PER_EPOCH + 3
    saved = checkpoint.load(tmp_path / "scratch")
    assert saved is not None
    assert 2 * PER_EPOCH <= saved["step"] <= 2 * PER_EPOCH + 3
    assert checkpoint.is_finite(saved)
    steps.clear()
    resumed = run(tmp_path, images, RECIPE, model=DROPOUT, output="resumed")
    assert steps == list(range(saved["step"], 4 * PER_EPOCH))
    assert all(isfinite(epoch["val_loss"]) for epoch in resumed.history)


@pytest.mark.parametrize(
    ("state", "finite"),
    [
        ({"step": 3, "best": None, "history": [{"loss": 0.5}]}, True),
        ({"history": [{"loss": float("nan")}]}, False),
        ({"network": {"a": torch.tensor([1.0, torch.inf])}}, False),
        ({"state": {0: {"exp_avg_sq": torch.tensor([torch.nan])}}}, False),
        (
            {"network": {"a": torch.full((9,), 3e38), "b": torch.arange(3), "c": torch.ones(0)}},
            True,
        ),
        ({"a": torch.full((9,), 3e38, dtype=torch.bfloat16), "b": torch.ones(3)}, True),
        ({"a": torch.ones(9, dtype=torch.bfloat16), "b": torch.full((3,), torch.nan)}, False),
    ],
)
def test_every_number_of_a_checkpoint_is_looked_at(state, finite):
    assert checkpoint.is_finite(state) is finite


def test_mlflow_has_one_run_and_each_epoch_once(interrupted, images):
    client = tracking.client(run(interrupted, images, RECIPE, model=DROPOUT).project)
    [experiment] = [each for each in client.search_experiments() if each.name == "sides"]
    [only] = client.search_runs([experiment.experiment_id])
    assert only.info.status == "FINISHED"
    logged = client.get_metric_history(only.info.run_id, "train_loss")
    assert [metric.step for metric in logged] == [1, 2, 3, 4]


def test_as_many_of_the_newest_checkpoints_are_kept_as_configured(interrupted):
    kept = sorted((interrupted / "scratch" / checkpoint.FOLDER).iterdir())
    assert [int(path.name.split("-")[0]) for path in kept] == [
        2 * PER_EPOCH + 1,
        2 * PER_EPOCH + 2,
        2 * PER_EPOCH + 3,
    ]


LONG = Train(epochs=2, batch_size=8, lr=0.003, augment=Augment(shift=1))
LONG_PER_EPOCH = 400


def train_long(root: Path) -> None:
    """What the subprocess runs: it checkpoints after every step."""
    run(root, root / "images", LONG, model=DROPOUT, scale=OFTEN)


def test_a_killed_training_goes_on_in_the_middle_of_an_epoch(tmp_path, steps):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    images = write_prepared(killed / "images", rows=LONG_PER_EPOCH * LONG.batch_size)
    program = (
        "import pathlib, sys; from tests.tasks.train.test_resume import train_long;"
        "train_long(pathlib.Path(sys.argv[1]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(killed)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    checkpoints = killed / "scratch" / checkpoint.FOLDER
    while not any(int(path.name.split("-")[0]) > 20 for path in checkpoints.glob("*.pt")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()  # its output ends with the last process that has it
    assert process.returncode == -signal.SIGKILL
    reached = int(max(checkpoints.glob("*.pt")).name.split("-")[0])
    assert 0 < reached < LONG_PER_EPOCH

    resumed = run(killed, images, LONG, model=DROPOUT, output="resumed")
    assert steps == list(range(reached, LONG.epochs * LONG_PER_EPOCH))
    undisturbed = run(whole, images, LONG, model=DROPOUT)
    assert resumed.facts == undisturbed.facts
    assert resumed.model_files() == undisturbed.model_files()
