"""Workers on two nodes that share nothing but an object store train as two on one machine do."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pyarrow.fs import FileSelector, FileSystem

from retrain.disk import sha256_of, write_json
from retrain.errors import UsageError
from retrain.outputs import MANIFEST, Plan, digest_of_output, list_files
from retrain.project import Project
from retrain.servers import ray_cluster
from retrain.store import Store
from retrain.workload import Augment, Model, Scale, Train
from tasks.train import launch
from tests.tasks.train.helpers import SMALL, Trained, run, write_prepared

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PER_EPOCH = 200
OWN = Train(epochs=3, batch_size=16, lr=0.003, augment=Augment(shift=1))
FUNCTION = OWN.model_copy(
    update={"function": "examples.ported:train", "augment": Augment(), "epochs": 4}
)
CUSTOM = Model(family="custom", factory="examples.network:build_model", arguments={"channels": 1})
SCALE = Scale(workers=2, checkpoint_seconds=2.0)


def publish(images: Path, store: Store) -> Path:
    """Puts prepared images into a store; returns their folder there."""
    made = Plan("preprocess", {}, {}, {}, {})
    folder = store.folder(made.step, made.key)
    shutil.copytree(images, folder)
    files, facts = list_files(folder), {"storage": "pixels"}
    manifest = {"digest": digest_of_output(facts, files), "facts": facts, "files": files}
    write_json(folder / MANIFEST, manifest | {"provenance": {"run": "1"}, "plan": asdict(made)})
    return folder


def drive(root: str, recipe: str) -> None:
    """What a driver's process runs; it prints what it has trained."""
    project, prepare = Project(Path(root)), launch.prepare
    # All is on one machine here: the nodes look for another file than the driver has made.
    launch.prepare = lambda job: replace(prepare(job), token="another")
    ray_cluster.blind_machines = lambda: ("other (127.0.0.1)",)
    images = Store(project.store).folder("preprocess", Plan("preprocess", {}, {}, {}, {}).key)
    trained = train(project.root, images, Train.model_validate_json(recipe))
    print(json.dumps(described(trained)))


def train(root: Path, images: Path, recipe: Train) -> Trained:
    return run(root, images, recipe, model=CUSTOM if recipe.function else SMALL, scale=SCALE)


def described(trained: Trained) -> dict:
    files = {path.name: sha256_of(path) for path in (trained.folder / "model").iterdir()}
    losses = [(epoch["epoch"], epoch["val_accuracy"]) for epoch in trained.history]
    return {"facts": trained.facts, "files": files, "epochs": losses}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere") / "images"
    return write_prepared(folder, rows=PER_EPOCH * OWN.batch_size)


@contextmanager
def driving(root: Path, recipe: Train, environment: dict[str, str] = "nothing"):
    """A driver's process; it is killed after the block."""
    folders = {"RETRAIN_STORE": str(root / "store"), "PYTHONPATH": str(ROOT)}
    program = "import sys; from tests.tasks.train.test_elsewhere import drive; drive(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(root), recipe.model_dump_json()],
        cwd=ROOT,
        env=os.environ | environment | folders,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def place(root: Path, images: Path) -> Path:
    """A clone on a machine of its own, with the images in its store."""
    root.mkdir()
    shutil.copy(ROOT / "params.yaml", root)
    publish(images, Store(root / "store"))
    return root


def stored(remote: str, end: str = "") -> list[str]:
    """The paths of what the object store has of trainings, in order."""
    files, path = FileSystem.from_uri(f"{remote}/training")
    found = files.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    return sorted(each.path for each in found if each.is_file and each.path.endswith(end))


def wait_for(process, condition):
    until = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.1)


def result_of(process):
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("recipe", [OWN, FUNCTION], ids=["own loop", "function"])
def test_nodes_train_the_same_network_after_the_driver_and_a_node_were_killed(
    nodes, bucket, prepared, tmp_path, ray_session, recipe
):
    (environment, tell), own = nodes, recipe.function is None
    environment = environment | {"RETRAIN_STORE_REMOTE": bucket}
    with driving(place(tmp_path / "first", prepared), recipe, environment) as first:
        wait_for(first, lambda: len(stored(bucket, ".pt")) > 1)
        first.send_signal(signal.SIGKILL)
    if own:  # damage the newest
        files, _ = FileSystem.from_uri(bucket)
        newest = max(stored(bucket, ".pt"), key=lambda path: path.rpartition("/")[2])
        content = bytearray(files.open_input_file(newest).read())
        content[len(content) // 2] ^= 1
        with files.open_output_stream(newest) as file:
            file.write(bytes(content))
    before = set(stored(bucket, ".pt"))
    with driving(place(tmp_path / "second", prepared), recipe, environment) as second:
        wait_for(second, lambda: set(stored(bucket, ".pt")) - before)
        tell("kill")
        on_nodes = result_of(second)
    assert not stored(bucket)
    assert [*(tmp_path / "head/preprocess").rglob("*.npy")]
    assert not [*(tmp_path / "head/scratch/train").iterdir()]
    here = described(train(tmp_path / "here", prepared, recipe))
    assert on_nodes == json.loads(json.dumps(here))
    assert len(on_nodes["epochs"]) == recipe.epochs


def test_a_machine_that_does_not_see_the_store_is_named_before_the_training(
    nodes, prepared, tmp_path
):
    environment, _ = nodes
    with driving(place(tmp_path / "clone", prepared), OWN, environment) as process:
        _, err = process.communicate(timeout=100)
    last = err.splitlines()[-1]
    assert last.startswith(f"{UsageError.__module__}.UsageError: The machine ")
    assert "of the cluster of RAY_ADDRESS does not see the store in" in last
    assert "Set RETRAIN_STORE to a folder that all machines see, or store.remote" in last
