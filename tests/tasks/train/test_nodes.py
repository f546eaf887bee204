"""Workers on two nodes of a cluster, which see one folder, train as two on one machine do."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from retrain.errors import UsageError
from retrain.workload import Augment, Scale, Train
from tests.flows.conftest import until
from tests.tasks.train.helpers import ROOT, Trained, run, write_prepared

pytestmark = pytest.mark.slow

PER_EPOCH = 100
OWN = Train(epochs=3, batch_size=16, lr=0.003, augment=Augment(shift=1))
SCALE = Scale(workers=2, checkpoint_seconds=0.5)
DRIVE = """
import sys
from pathlib import Path
from tests.tasks.train.helpers import run
from tests.tasks.train.test_nodes import OWN, SCALE
root, images, output = sys.argv[1:]
run(Path(root), Path(images), OWN, scale=SCALE, output=output)
"""
# In which workers are in the folder of their node; else Ray gives them one, with the driver's code.
IN_THEIR_FOLDERS = f"""
import ray
ray.init(log_to_driver=False)
{DRIVE}"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes") / "images"
    return write_prepared(folder, rows=PER_EPOCH * OWN.batch_size)


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


def test_nodes_train_the_same_network_after_the_driver_and_a_node_were_killed(
    nodes, prepared, tmp_path, ray_session
):
    (environment, kill), root = nodes, tmp_path / "clone"

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


@pytest.mark.skipif(sys.platform != "linux", reason="another system has no folder of that name")
def test_a_machine_that_does_not_see_the_store_is_named_before_the_training(
    nodes, prepared, tmp_path
):
    environment, _ = nodes
    own = environment | {"RETRAIN_STORE": "/proc/self/cwd"}  # each process has another one there
    with driving(tmp_path, prepared, "output", IN_THEIR_FOLDERS, **own) as process:
        _, err = process.communicate(timeout=100)
    last = err.splitlines()[-1]
    assert last.startswith(f"{UsageError.__module__}.UsageError: The machine ")
    assert " and " not in last.partition("does not see")[0]  # the other one
    assert "of the cluster of RAY_ADDRESS does not see the store in /proc/self/cwd. " in last
    assert last.endswith("Set RETRAIN_STORE to a folder that all machines see.")
