"""A cluster whose machines have other code of the project; those of `tests/cluster` have none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrain import hardware
from retrain.outputs import list_files
from tests.tasks.toy_data import png, pulled, write_files
from tests.templates import copy_working_tree

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
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


def test_workers_run_the_code_of_the_driver(nodes, tmp_path):
    copy_working_tree(tmp_path)
    changed = (ROOT / "models/image.py").read_bytes() + b"\nCHANGED = 'today'\n"
    own = {"models/image.py": changed, "mine.py": b"", "ours/__init__.py": b""}
    secrets = {"data/secret.png": png(0), ".env": b"PASSWORD=1", "mlflow.db": b"1"}
    write_files(tmp_path, own | secrets)
    write_files(tmp_path / "pulled/data", {f"{n % 2}/{n:02}.png": png(n) for n in range(40)})
    pulled(tmp_path / "pulled")
    variables = nodes[0] | {"PYTHONPATH": str(tmp_path)}
    said = subprocess.check_output(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=os.environ | variables, timeout=120
    )
    result = json.loads(said)
    assert result["address"] == variables["RAY_ADDRESS"]
    assert result["asked"] == [vars(hardware.this_node()) | {"gpus": []}] * 2
    changed, files = result["seen"]
    assert changed == "today"
    code = ["examples", "flows", "mine.py", "models", "ours", "retrain", "tasks", "team"]
    assert files == sorted([*code, "params.yaml"])
    for step in ("validate", "preprocess"):
        made, expected = (
            [file for file in list_files(tmp_path / place / step) if "report" not in file["path"]]
            for place in ("prepared", "here")
        )
        assert made == expected != []
