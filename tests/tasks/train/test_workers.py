"""Workers of Ray, on a machine or two: as a training in one process, whatever is killed."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from retrain.registry import tracking
from retrain.workload import Augment, Model, Scale, Train
from tests.flows.conftest import until
from tests.tasks.train.helpers import (
    ROOT,
    Trained,
    assert_alike,
    killing_a_worker,
    run,
    validated,
    write_prepared,
)

SHORT = Train(epochs=2, batch_size=16, lr=0.003, augment=Augment(shift=1))
strategies = pytest.mark.parametrize(
    "strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)]
)


@strategies
def test_two_workers_train_as_one_process_does(ray_session, images, tmp_path, strategy):
    two = run(tmp_path / "two", images, SHORT, scale=Scale(workers=2, strategy=strategy))
    assert_alike(two, run(tmp_path / "one", images, SHORT))


BATCH_NORMS = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8], "depths": [1],
    "layer_type": "basic",
}  # fmt: skip


@pytest.mark.slow
def test_workers_evaluate_what_is_saved(ray_session, images, tmp_path):
    recipe = SHORT.model_copy(update={"freeze_epochs": 1})  # so DDP is made anew
    model = Model(family="auto", config=BATCH_NORMS)
    trained = run(tmp_path, images, recipe, model=model, scale=Scale(workers=2))
    loss, _ = validated(trained, images)
    assert trained.facts["val_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
@strategies
def test_three_workers_end_with_the_same_bits_when_one_is_killed(
    ray_session, images, tmp_path, strategy
):
    # Of three numbers, unlike of two, the sum depends on the order.
    recipe = SHORT.model_copy(update={"epochs": 4})
    scale = Scale(workers=3, strategy=strategy, checkpoint_seconds=1e-9)
    whole = run(tmp_path / "whole", images, recipe, scale=scale)
    with killing_a_worker(tmp_path):
        resumed = run(tmp_path, images, recipe, scale=scale)
    assert resumed.facts == whole.facts
    assert resumed.model_files() == whole.model_files()


TRACKED = Train(epochs=2, batch_size=16)
# Trains, and is killed when it calls a method of MLflow's client; at its end if it ends the run.
KILLED = """
import os, signal, sys
from pathlib import Path
from mlflow import MlflowClient
from tests.tasks.train.helpers import run
from tests.tasks.train.test_workers import TRACKED

root, images, name = sys.argv[1:]
method = getattr(MlflowClient, name)

def killed(*arguments, **named):
    if name == "set_terminated":
        method(*arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(MlflowClient, name, killed)
run(Path(root), Path(images), TRACKED, output=name)
"""


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
    assert tracked.data.params["train.epochs"] == "2"
    for name in sorted(trained.history[0].keys() - {"seconds"}):
        steps = [metric.step for metric in client.get_metric_history(trained.run_id, name)]
        assert sorted(steps) == [1, 2]


PER_EPOCH = 100
OWN = Train(epochs=3, batch_size=16, lr=0.003, augment=Augment(shift=1))
SCALE = Scale(workers=2, checkpoint_seconds=0.5)
DRIVE = """
import sys
from pathlib import Path
from tests.tasks.train.helpers import run
from tests.tasks.train.test_workers import OWN, SCALE
root, images, output = sys.argv[1:]
run(Path(root), Path(images), OWN, scale=SCALE, output=output)
"""
# In which workers are in the folder of their node; else Ray gives them one, with the driver's code.
IN_THEIR_FOLDERS = f"""
import ray
ray.init(log_to_driver=False)
{DRIVE}"""


@contextmanager
def driving(root: Path, images: Path, output: str, program: str = DRIVE, **more: str):
    """A driver's process in a clone; it is killed after the block."""
    root.mkdir(exist_ok=True)
    shutil.copy(ROOT / "params.yaml", root)
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(root), str(images), output],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_nodes_train_the_same_network_after_the_driver_and_a_node_were_killed(
    nodes, tmp_path, ray_session
):
    (environment, kill), root = nodes, tmp_path / "clone"
    prepared = write_prepared(tmp_path / "images", rows=PER_EPOCH * OWN.batch_size)

    def checkpoints():
        return {path for path in root.rglob("*.pt") if "best" not in path.parts}

    with driving(root, prepared, "first", **environment) as first:
        until(lambda: len(checkpoints()) > 1, 300)
        first.send_signal(signal.SIGKILL)
    before = checkpoints()
    with driving(root, prepared, "second", **environment) as second:
        until(lambda: checkpoints() - before, 300)
        kill()
        _, err = second.communicate(timeout=500)
    assert second.returncode == 0, err
    here = run(tmp_path / "here", prepared, OWN, scale=SCALE)
    there = Trained({}, root / "second", here.project)
    assert there.model_files() == here.model_files()
    for epoch, same in zip(there.history, here.history, strict=True):
        assert epoch["val_accuracy"] == same["val_accuracy"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="another system has no folder of that name")
def test_a_machine_that_does_not_see_the_store_is_named_before_the_training(
    nodes, images, tmp_path
):
    environment, _ = nodes
    own = environment | {"RETRAIN_STORE": "/proc/self/cwd"}  # each process has another one there
    with driving(tmp_path, images, "output", IN_THEIR_FOLDERS, **own) as process:
        _, err = process.communicate(timeout=100)
    said = (
        r"UsageError: The machine (?!.* and ).* of the cluster of RAY_ADDRESS does not see the "
        r"store in /proc/self/cwd\. Set RETRAIN_STORE to a folder that all machines see\.$"
    )
    assert re.search(said, err.splitlines()[-1])
