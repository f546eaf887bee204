"""A training that is interrupted goes on where it was, ends with the same bits, and has one run."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from retrain.registry import tracking
from retrain.workload import Augment, Model, Scale, Train
from tasks.train import distributed, train
from tasks.train.session import CHECKPOINTS, read_state
from tests.tasks.train.helpers import KEY, OFTEN, SMALL, run, write_form, write_split

ROOT = Path(__file__).parents[3]
RECIPE = Train(epochs=4, batch_size=16, lr=0.01, augment=Augment(shift=1, flip=True))
PER_EPOCH = 6
DROPOUT = SMALL.model_copy(update={"dropout": 0.1})


def kept(root: Path) -> list[Path]:
    """The folders of the checkpoints that a training without workers keeps."""
    return sorted((root / "scratch" / CHECKPOINTS).iterdir())


def step_of(folder: Path) -> int:
    return read_state(folder)["step"]


def test_it_goes_on_from_the_last_checkpoint(images, tmp_path, ending_before, steps, caplog):
    undisturbed = run(tmp_path / "whole", images, RECIPE, model=DROPOUT)
    with ending_before(2 * PER_EPOCH + 3):  # in its third epoch
        run(tmp_path, images, RECIPE, model=DROPOUT, scale=OFTEN, output="interrupted")
    best, *newest = kept(tmp_path)
    assert step_of(best) in (PER_EPOCH, 2 * PER_EPOCH)
    assert [step_of(folder) for folder in newest] == [14, 15]
    resumed = run(tmp_path, images, RECIPE, model=DROPOUT)
    assert "train continues at step 15, from its last checkpoint." in caplog.messages
    assert steps == list(range(2 * PER_EPOCH + 3, 4 * PER_EPOCH))
    assert resumed.facts == undisturbed.facts
    assert resumed.model_files() == undisturbed.model_files()
    losses = [[epoch["train_loss"] for epoch in each.history] for each in (resumed, undisturbed)]
    assert losses[0] == losses[1]


def test_a_training_that_diverges_leaves_no_checkpoint_of_it(images, tmp_path, monkeypatch):
    clip, norms = train.clip_gradients, []

    def exploding(network, largest):
        norms.append(clip(network, largest))
        return norms[-1] * float("nan") if len(norms) == 15 else norms[-1]

    monkeypatch.setattr(train, "clip_gradients", exploding)
    with pytest.raises(ValueError, match=r"diverged in epoch 3: .* Lower train\.lr"):
        run(tmp_path, images, RECIPE, model=DROPOUT, scale=OFTEN)
    newest = kept(tmp_path)[-1]
    assert step_of(newest) == 14
    weights = read_state(newest)["weights"]
    assert all(value.isfinite().all() for value in weights.values())


def test_a_training_that_diverges_in_its_last_step_is_refused(images, tmp_path):
    with pytest.raises(ValueError, match="diverged in epoch 1"):
        run(tmp_path, images, Train(epochs=1, batch_size=96, lr=1e30))


# A table of position biases with one row for many pairs of pixels: threads add up its gradient.
BIASED = {
    "model_type": "swin", "patch_size": 1, "window_size": 16, "depths": [1], "num_heads": [1],
    "embed_dim": 8,
}  # fmt: skip


def test_a_training_with_several_threads_repeats_itself_to_the_bit(tmp_path):
    random, folder = np.random.default_rng(0), tmp_path / "images"
    for split in ("train", "val"):
        pixels = random.integers(0, 256, (32, 16, 16, 1), np.uint8)
        write_split(folder / split, [pixels], np.arange(32) % 2)
    write_form(folder, ("a", "b"), size=16, channels=1)
    recipe, model = Train(epochs=1, batch_size=8), Model(family="auto", config=BIASED)
    weights = {
        run(tmp_path / str(n), folder, recipe, model=model, scale=Scale(threads=2)).facts["weights"]
        for n in range(3)
    }
    assert len(weights) == 1


def test_a_network_that_cannot_be_repeated_to_the_bit_is_trained_too(images, tmp_path):
    model = Model(family="custom", factory="tests.tasks.train.functions:unrepeatable")
    with pytest.warns(UserWarning, match=distributed.NOT_REPEATABLE):
        run(tmp_path, images, Train(epochs=1, batch_size=16), model=model)
    assert not torch.are_deterministic_algorithms_enabled()


TRACKED = Train(epochs=2, batch_size=16)
# Trains, and is killed when it calls a method of MLflow's client; at its end if it ends the run.
KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from mlflow import MlflowClient
    from tests.tasks.train.helpers import run
    from tests.tasks.train.test_resume import TRACKED

    root, images, name = sys.argv[1:]
    method = getattr(MlflowClient, name)

    def killed(*arguments, **named):
        if name == "set_terminated":
            method(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(MlflowClient, name, killed)
    run(Path(root), Path(images), TRACKED, output=name)
    """
)


@pytest.mark.slow
def test_a_training_has_one_run_whenever_it_was_killed(images, tmp_path):
    # Before the run has its parameters; when it has ended, and the output is not published yet.
    for name in ("log_batch", "set_terminated"):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, str(tmp_path), str(images), name],
            env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr
    trained = run(tmp_path, images, TRACKED)
    client = tracking.client(trained.project)
    experiment = client.get_experiment_by_name("sides")
    [tracked] = client.search_runs([experiment.experiment_id])
    assert tracked.info.run_id == trained.run_id
    assert tracked.info.status == "FINISHED"
    assert tracked.data.tags[tracking.KEY] == KEY
    assert tracked.data.params["train.epochs"] == "2"
    for name in sorted(trained.history[0].keys() - {"seconds"}):
        steps = [metric.step for metric in client.get_metric_history(trained.run_id, name)]
        assert Counter(steps) == {1: 1, 2: 1}
