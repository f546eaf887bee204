"""Steps on two nodes that share nothing but an object store give what one machine gives."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from models.pretrained import find_version
from retrain import exchange
from retrain.execute import get_or_run
from retrain.outputs import plan
from retrain.project import Project
from retrain.registry.versions import ModelVersion
from retrain.remote import Remote
from retrain.runs import console
from retrain.servers import machines
from retrain.store import Artifact, RunContext, Store
from retrain.verify import Verifier
from retrain.workload import Checks, Data, Evaluate, Images, Model, Scale, Train, Workload
from tasks.compute import ray_data, served
from tasks.data import raw_dataset
from tasks.data.champion import Registered, Start, TestSplit
from tasks.embed.step import embed
from tasks.evaluate.champion import evaluate_champion
from tasks.evaluate.step import evaluate
from tasks.preprocess import step as preprocess_step
from tasks.promote.package import write_package
from tasks.pull.step import data_version, pull
from tasks.train.step import train
from tasks.validate.step import validate
from tests import templates
from tests.tasks.embed.conftest import write_backbone
from tests.tasks.evaluate.test_champion import appoint
from tests.tasks.toy_data import png, write_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
IMAGES = 240  # in units of five
WORTH_ROWS = 5
VIT = {"family": "vit", "patch_size": 4, "hidden_size": 16, "layers": 1, "heads": 2}


def workload(images: Path, model: dict) -> Workload:
    return Workload(
        name="toy",
        data=Data(path=str(images)),
        checks=Checks(min_images_per_class=1),
        images=Images(size=8, channels=1),
        model=Model(**model),
        train=Train(epochs=1, batch_size=32, precision="fp32"),
        scale=Scale(threads=1),
        evaluate=Evaluate(batch_size=16, precision="fp32"),
    )


def drive(images: str, model: str, last: str) -> None:
    """What a driver's process runs in a clone: the steps up to one.

    It prints a line for each with its digest, and how many units were left to prepare.
    """
    without, left = machines.machines_without, []
    # All is on one machine here: the nodes look for another file than the driver has made.
    machines.machines_without = lambda file: without(file.with_name("another"))
    ray_data.START, raw_dataset.WORTH_ROWS = -100.0, WORTH_ROWS
    served.ROWS_PER_PROCESS = 1
    mapped = preprocess_step.map_units

    def counted(function, units, **options):
        left.append(len(units))
        return mapped(function, units, **options)

    preprocess_step.map_units = counted
    project = Project(Path.cwd())
    settings, store = workload(Path(images), json.loads(model)), Store.of(project)
    context, made = RunContext("run", project), {}
    chain = [pull, validate, preprocess_step.preprocess, embed, train, evaluate, evaluate_champion]
    for step in chain if settings.model.family == "embedding_head" else chain[:3] + chain[4:]:
        known = {"data": data_version(settings.data, project), "start": Start(None)} | made
        if step is evaluate_champion:
            registered = Registered(project, register(project, made["train"], made["validate"]))
            known |= {"registry": registered, "test_split": TestSplit(made["validate"])}
        inputs = [known[name] for name in step.inputs_for(settings)]
        planned = plan(step, settings, inputs)
        with console.shown_on(sys.stderr), store.making(step.name, planned.key):
            call = (store, step, planned, settings, inputs, context, Verifier(store).check)
            made[step.name], _ = get_or_run(*call)
        print(json.dumps([step.name, made[step.name].digest]), flush=True)
        if step.name == last:
            break
    print(json.dumps(["left", left]))


def register(project: Project, trained: Artifact, validated: Artifact) -> ModelVersion:
    """Makes what was trained the champion."""
    folder = project.root / "package"
    write_package(trained.folder / "model", "fp32", validated.facts["classes"], folder)
    return appoint(project, folder, trained)


@pytest.fixture
def raw(tmp_path):
    """Images in class folders, which take a while to decode."""
    files = {f"{n % 3}/{n:03}.png": png(n, 300, 200) for n in range(IMAGES)}
    write_files(tmp_path / "raw", files)
    return tmp_path / "raw"


@contextmanager
def driving(root: Path, environment: dict[str, str], *arguments: str):
    """A driver's process, in a clone of its own; it is killed after the block."""
    if not root.exists():
        root.mkdir()
        shutil.copy(ROOT / "params.yaml", root)
        templates.place_mlflow_database(root)
    places = {"RETRAIN_STORE": str(root / "store"), "PYTHONPATH": str(ROOT)}
    program = "import sys; from tests.tasks.test_cluster_steps import drive; drive(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=root,
        env=os.environ | environment | places,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process) -> dict:
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    return dict(json.loads(line) for line in out.splitlines() if line.startswith('["'))


def run(root: Path, environment: dict[str, str], *arguments: str) -> dict:
    with driving(root, environment, *arguments) as process:
        return told(process)


def wait_for(process, condition):
    until = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.02)


def shards(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("images-*.npy") if "partial" not in str(path)]


def records(root: Path) -> list[Path]:
    return [*root.glob("store/scratch/preprocess/*/*/*.sent")]


def vit(root: Path) -> str:
    return json.dumps(VIT)


def head(root: Path) -> str:
    backbone = str(write_backbone(root / "backbone"))
    version = find_version(backbone, Path())
    settings = {"pretrained": backbone, "pretrained_version": version, "hidden": 8}
    return json.dumps({"family": "embedding_head"} | settings)


@pytest.mark.parametrize("model", [vit, head])
def test_two_nodes_make_what_one_machine_makes(nodes, bucket, raw, tmp_path, model):
    environment, _ = nodes
    environment = environment | {"RETRAIN_STORE_REMOTE": bucket}
    network = model(tmp_path)
    run(tmp_path / "laptop", {"RETRAIN_STORE_REMOTE": bucket}, str(raw), network, "pull")
    arguments, driver = (str(raw), network, "evaluate_champion"), tmp_path / "driver"
    run(driver, environment, str(raw), network, "validate")
    names = ("head", "other")
    fetched = [len([*(tmp_path / name / "pull").rglob("*.png")]) for name in names]
    assert sum(fetched) == IMAGES and min(fetched) > 0
    apart = run(driver, environment, *arguments)
    here = run(tmp_path / "here", {}, *arguments)
    assert apart == here
    assert not [*(driver / "store/pull").rglob("*.png")]
    assert not any(shards(tmp_path / name / "scratch") for name in names)
    assert [*tmp_path.glob("[ho]*/scratch/evaluate_champion/*/package/*/*/model.safetensors")]


def test_a_node_and_the_driver_are_killed_and_what_was_sent_counts(nodes, bucket, raw, tmp_path):
    environment, tell = nodes
    environment = environment | {"RETRAIN_STORE_REMOTE": bucket}
    root, arguments = tmp_path / "driver", (str(raw), json.dumps(VIT), "preprocess")
    with driving(root, environment, *arguments) as first:
        wait_for(first, lambda: len(records(root)) > 9)
        first.send_signal(signal.SIGKILL)
    sent = records(root)
    lost = json.loads(sent[0].read_text())["sha256"]
    Remote(bucket).delete([exchange.file_path(lost)])
    with driving(root, environment, *arguments) as second:
        wait_for(second, lambda: len(records(root)) > len(sent) + 3)
        tell("kill")
        apart = told(second)
    here = run(tmp_path / "here", {}, *arguments)
    [left], [units] = apart.pop("left"), here.pop("left")
    finished = {path.name for path in sent}
    assert left <= units - len(finished) // 3 + 1
    assert apart == here
    assert not shards(root)


def test_without_an_object_store_the_work_stays_and_a_line_says_so(nodes, raw, tmp_path):
    environment, _ = nodes
    arguments = (str(raw), json.dumps(VIT), "preprocess")
    with driving(tmp_path / "driver", environment, *arguments) as process:
        _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert said.count("Only this machine of the cluster does the work before and after") == 1
    assert shards(tmp_path / "driver/store")
