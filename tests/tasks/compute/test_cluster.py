"""A cluster whose machines have the libraries and nothing of the project."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from retrain import hardware
from retrain.outputs import list_files
from retrain.servers import ray_cluster
from tests.flows.conftest import free_port, until
from tests.tasks.toy_data import png, pulled, write_files

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
TOKEN = secrets.token_hex(32)
# Runs in a clone whose code differs from what is anywhere else: `prepared` is made by the cluster
# and `here` by the driver.
PROGRAM = """
import json, os, sys
from pathlib import Path
from retrain.project import Project
from retrain.step import Workspace
from retrain.store import Artifact
from retrain.workload import Checks, Data, Gate, Images
from tasks.compute import ray_data
from tasks.data import raw_images
from tasks.preprocess.step import preprocess
from tasks.validate.step import validate

def workspace(name):
    folder = Path(name)
    folder.mkdir(parents=True)
    scratch = folder.with_suffix(".scratch")
    return Workspace(folder.absolute(), scratch.absolute(), "key", "toy", Project(Path.cwd()))

def run(name):
    data = Data(path="data")
    pulled = Artifact("pull", "key", "digest", Path("pulled").absolute(), {"image_column": None})
    checked = workspace(name + "/validate")
    facts = validate(data, Checks(min_images_per_class=1), Gate(), pulled, None, checked)
    validated = Artifact("validate", "key", "digest", checked.folder, facts)
    preprocess(Images(size=6), pulled, validated, workspace(name + "/preprocess"))

def look(unit):
    import models.image
    assert Path(models.image.__file__).is_relative_to(Path.cwd())
    return models.image.CHANGED, sorted(os.listdir())

raw_images.WORTH_ROWS = 5
ray_data.START = 1e6
run("here")
assert "ray" not in sys.modules
ray_data.START = 0.0
run("prepared")
import ray
from retrain.servers import ray_cluster
state = Path(".retrain").absolute()
asked = ray_cluster.nodes(state)
ray_cluster.forget_others(state)
ray_cluster.disconnect()
assert ray_cluster.nodes(state) == asked
assert not ray.is_initialized()
ray_cluster.connect()
print(json.dumps({
    "asked": [vars(each) for each in asked],
    "seen": next(ray_data.each(lambda _: look, [1], seconds=1e6)),
    "address": ray.get_runtime_context().gcs_address,
}))
"""


def environment(**more: str) -> dict[str, str]:
    """This process's, without what says where the project or a Ray is."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith("RAY_")
    }
    # On loopback (the name is Ray's), and for nobody else on this machine.
    closed = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
    return inherited | closed | {"RAY_USAGE_STATS_ENABLED": "0"} | more


@pytest.fixture
def cluster():
    """The address of a Ray of another environment, which runs somewhere else."""
    # Not below `tmp_path`: the names of its sockets have to be short.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv/bin/python"
    [packages] = (folder / "venv/lib").glob("*/site-packages")
    # A folder that is added so has its own `.pth` files left alone: also that of the project.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                python,
                "-m",
                "ray.scripts.scripts",
                "start",
                "--head",
                "--block",
                "--node-ip-address",
                "127.0.0.1",
                "--port",
                address.split(":")[1],
                "--num-cpus",
                "2",
                "--object-store-memory",
                str(100 * 2**20),
                "--temp-dir",
                str(folder / "ray"),
                "--include-dashboard",
                "false",
            ],
            cwd=folder,
            env=environment(RAY_AUTH_TOKEN=TOKEN),
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: "Ray runtime started" in (folder / "log").read_text())
        yield address
    finally:
        # Asked to end, it takes long. Its own children have groups of their own.
        family = [*psutil.Process(process.pid).children(recursive=True), process]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def test_workers_need_the_libraries_only_and_run_the_code_of_the_driver(cluster, tmp_path):
    for name in ray_cluster.sent(ROOT):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    with (tmp_path / "models/image.py").open("a") as module:
        module.write("\nCHANGED = 'today'\n")
    write_files(tmp_path / "pulled/data", {f"{n % 2}/{n:02}.png": png(n) for n in range(40)})
    pulled(tmp_path / "pulled")
    write_files(tmp_path, {"data/secret.png": png(0), ".env": b"PASSWORD=1", "mlflow.db": b"1"})
    write_files(tmp_path, {"tests/__init__.py": b"", "mine.py": b"", "ours/__init__.py": b""})

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(tmp_path), RAY_ADDRESS=cluster, RAY_AUTH_TOKEN=TOKEN),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["address"] == cluster
    here = hardware.this_node()
    asked = {"cores": here.cores, "gpus": [], "has_bf16": here.has_bf16}
    assert result["asked"] == [asked]
    changed, files = result["seen"]
    assert changed == "today"
    code = ["examples", "flows", "mine.py", "models", "ours", "retrain", "tasks", "team"]
    assert files == sorted([*code, "params.yaml"])
    for step in ("validate", "preprocess"):
        made, expected = (
            [file for file in list_files(tmp_path / place / step) if "report" not in file["path"]]
            for place in ("prepared", "here")
        )
        assert made == expected
        assert made
