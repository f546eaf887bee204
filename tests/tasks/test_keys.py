"""What makes the steps run again: the plans of a copy of the project, before and after an edit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML
from safetensors.numpy import save_file

from flows.train import train
from retrain.hardware import has_bf16
from retrain.outputs import Plan
from retrain.params import load_workload, resolve
from retrain.project import Project
from retrain.step import DataVersion, plan
from retrain.store import Artifact
from retrain.workload import Workload

ROOT = Path(__file__).parents[2]
STEPS = {step.name: step for step in train.steps}
CACHED = ("pull", "validate", "preprocess", "train", "evaluate")
FACTS = {"format": "folders", "image_column": None, "storage": "pixels", "learnt": "digest"}

# Adds a line to each file of a copy of the project in turn, and prints which keys that changes.
PROGRAM = """
import json, sys
from pathlib import Path
from tests.tasks.test_keys import differing, plans

root = Path.cwd()
before = plans(root)
changed = {}
for name in json.loads(sys.argv[1]):
    text = (root / name).read_text()
    (root / name).write_text(text + "EDITED = True\\n")
    changed[name] = differing(before, plans(root))
    (root / name).write_text(text)
print(json.dumps(changed))
"""

EDITS = {
    "mine.py": ["train"],  # the copy's family imports it
    "models/__init__.py": ["train", "evaluate"],
    "models/auto.py": ["train"],  # a ViT is one of its networks
    "models/backbone.py": [],
    "models/embedding_head.py": [],
    "models/families.py": [],
    "models/image.py": ["validate", "preprocess", "evaluate"],  # it is served too
    "models/auto_network.py": ["evaluate"],
    "models/custom_network.py": [],
    "models/vit_network.py": ["evaluate"],
    "models/pretrained.py": ["train"],  # and so no package changes
    "models/resnet.py": [],
    "models/serving.py": ["evaluate"],
    "models/vit.py": ["train"],
    "retrain/file_io.py": [],
    "retrain/hardware.py": [],
    "retrain/params.py": [],
    "retrain/runs/console.py": [],
    "retrain/workload/__init__.py": [],
    "tasks/evaluate/step.py": ["evaluate"],
    "tasks/data/label_files.py": ["pull"],
    "tasks/data/index.py": ["pull"],
    "tasks/data/metrics.py": ["evaluate"],
    "tasks/pull/dvc_source.py": ["pull"],
    "tasks/pull/file_sources.py": ["pull"],
    "tasks/train/data_loading.py": ["train"],
    "tasks/train/stream.py": [],
    "tasks/train/user_function.py": ["train"],
    "tasks/train/train.py": ["train"],
    "tasks/train/mine.py": [],
    "tasks/train/session.py": ["train"],
    "tests/tasks/test_keys.py": [],
}


def plans(root: Path, facts: dict = FACTS, **overrides: object) -> dict[str, Plan]:
    """The plans of the steps that are cached, whatever earlier steps would give."""
    workload = load_workload(root / "params.yaml", "vit", overrides)
    return {name: step_plan(name, workload, facts) for name in CACHED}


def step_plan(name: str, workload: Workload, facts: dict = FACTS) -> Plan:
    inputs = [
        DataVersion("digest", tracked=True).as_input if each == "data"
        else Artifact(each, "key", "digest", Path(), facts)
        for each in STEPS[name].inputs_for(workload)
    ]  # fmt: skip
    return plan(STEPS[name], resolve(workload, Project(ROOT)), inputs)


def differing(one: dict[str, Plan], other: dict[str, Plan]) -> list[str]:
    """The steps whose keys differ."""
    return [name for name in CACHED if one[name].key != other[name].key]


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """The steps whose key an edit of a file changes, by the file's name."""
    root = tmp_path_factory.mktemp("copy")
    for name in ("flows", "models", "retrain", "tasks", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "params.yaml", root)
    for name in ("mine.py", "models/resnet.py", "tasks/train/mine.py"):
        (root / name).write_text("N = 1\n")
    vit = root / "models" / "vit.py"
    vit.write_text(vit.read_text() + "import mine\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(EDITS))],
        cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("file", EDITS)
def test_an_edit_runs_again_what_it_changes_and_nothing_else(changed, file):
    assert changed[file] == EDITS[file]


@pytest.mark.parametrize(
    ("parameters", "steps"),
    [
        ({"scale.threads": 2}, ["train"]),
        ({"scale.checkpoint_seconds": 1.0}, []),
        ({"gate.approval": "manual"}, []),
    ],
)
def test_a_parameter_changes_the_keys_of_the_steps_whose_output_it_changes(parameters, steps):
    one = {"scale.threads": 1}
    assert differing(plans(ROOT, **one), plans(ROOT, **one | parameters)) == steps


def test_other_pretrained_weights_in_the_same_folder_are_another_training(tmp_path):
    sizes = ("patch_size", "hidden_size", "layers", "heads")
    start = {f"model.{name}": "" for name in sizes} | {"model.pretrained": str(tmp_path)}
    found = []
    for value in (1, 2, 1):
        save_file({"weight": np.full(4, value)}, tmp_path / "model.safetensors")
        found.append(plans(ROOT, **start))
    assert differing(found[0], found[1]) == ["train"]
    assert found[2] == found[0]


def test_a_new_version_of_what_checks_the_data_checks_it_again():
    assert "great-expectations" in plans(ROOT)["validate"].libraries


@pytest.mark.parametrize(
    ("overrides", "is_same"),
    [
        ({"model.hidden": 64, "model.dropout": 0.1, "train.lr": 0.1, "train.seed": 3}, True),
        ({"model.pretrained": f"openai/clip-vit-base-patch32@{'0' * 40}"}, False),
        ({"evaluate.precision": "fp32" if has_bf16() else "bf16"}, False),
    ],
)
def test_another_head_and_another_training_embed_nothing_again(overrides, is_same):
    example = ROOT / "examples/doggos.yaml"
    one, other = (load_workload(example, "doggos", each) for each in ({}, overrides))
    embed, train = step_plan("embed", one), step_plan("train", one)
    assert (step_plan("embed", other).key == embed.key) is is_same
    assert "models.backbone" in embed.code
    assert "models.embedding_head" in train.code.keys() - embed.code.keys()
    assert [*train.inputs] == ["embed", "start"]


def test_a_function_of_the_user_s_counts_with_its_network_and_their_libraries():
    custom = load_workload(ROOT / "examples/custom.yaml", "custom")
    other = custom.train.model_copy(update={"function": "examples.huggingface:train"})
    train, other_train, evaluate, plain = (
        step_plan(name, workload)
        for name, workload in (
            ("train", custom),
            ("train", custom.model_copy(update={"train": other})),
            ("evaluate", custom),  # which takes the network alone
            ("train", load_workload(ROOT / "params.yaml", "vit")),
        )
    )
    assert {"examples.network", "examples.ported", "models.custom"} <= train.code.keys()
    assert other_train.code.keys() - train.code.keys() == {"examples.huggingface"}
    own = {"numpy", "safetensors", "torch", "transformers"}
    assert train.libraries.keys() == other_train.libraries.keys() == own | {"ray"}
    assert plain.libraries.keys() == own
    assert {"examples.network", "examples.ported"} & evaluate.code.keys() == {"examples.network"}
    assert "ray" not in evaluate.libraries


def test_the_decoder_of_raw_images_counts_only_where_a_training_streams_them():
    pixels, source = (plans(ROOT, FACTS | {"storage": storage}) for storage in ("pixels", "source"))
    assert source["train"].code.keys() - pixels["train"].code.keys() >= {
        "models.image",
        "tasks.data.raw_images",
        "tasks.train.stream",
    }
    assert "tasks.data.index" not in source["train"].code
    assert source["evaluate"] == pixels["evaluate"]
    for planned in (pixels, source):  # of the raw data only what was prepared
        assert planned["train"].inputs.keys() == {"preprocess", "start"}


def test_dvc_knows_the_code_of_each_stage():
    stages = YAML(typ="safe", pure=True).load((ROOT / "dvc.yaml").read_text())["stages"]
    files = {f"examples/{name}.yaml": name for name in ("mnist", "custom", "doggos")}
    files["params.yaml"] = "vit"
    workloads = [load_workload(ROOT / file, name) for file, name in files.items()]
    for name in {*CACHED, "embed"} - {"pull"}:  # which looks at the data each time
        deps = {*stages[name]["do"]["deps"]}
        assert all((ROOT / each).exists() for each in deps if not each.endswith(".json"))
        modules = {module for each in workloads for module in step_plan(name, each).code}
        assert {module.partition(".")[0] for module in modules} <= deps, name
        assert name not in ("train", "evaluate") or {"examples", "team"} <= deps
