"""The lineage that a version gets when it is registered, and the command that shows it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from retrain import hardware
from retrain.cli.main import main
from retrain.project import Project
from retrain.registry import lineage, versions
from retrain.step import Input, Step
from retrain.store import Artifact, Store
from retrain.workload import Data, Model, Workload
from tasks.data import image_table
from tasks.promote.outcome import _steps
from tests import running
from tests.running import RunContext
from tests.tasks.promote.conftest import DATA, REQUIREMENTS, ROWS

WORKLOAD = Workload(name="toy", data=Data(path="data"), model=Model(family="vit"))
INPUTS: Mapping[str, tuple[str, ...]] = {
    "pull": ("data",),
    "validate": ("pull",),
    "preprocess": ("pull", "validate"),
    "embed": ("preprocess",),
    "train": ("embed",),
    "evaluate": ("train", "embed"),
}


pytestmark = pytest.mark.usefixtures("not_loaded")


@pytest.fixture
def version(project, one, place_of_commands):
    return versions.champion(project, "toy")


def write_step(*arguments) -> dict:
    """The function of each step of a small chain, whose output does not depend on its inputs."""
    folder = arguments[-1].folder
    (folder / "output.txt").write_text(folder.parent.name)
    return {}


def step_named(name: str) -> Step:
    return Step(name, write_step, reads=(), inputs=INPUTS[name], libraries=("numpy",))


def make(project: Project, name: str, given: Sequence[Input]) -> Artifact:
    step, store = step_named(name), Store(project.store)
    context = RunContext(f"run of {name}", project)
    return running.make(store, step, WORKLOAD, given, context)[0]


def make_chain(project: Project) -> dict[str, Artifact]:
    """The outputs of steps that depend on each other as those of a real run do."""
    made: dict[str, Any] = {"data": DATA}
    for name, inputs in INPUTS.items():
        made[name] = make(project, name, [made[each] for each in inputs])
    return made


def steps_of(project: Project, made: Mapping[str, Artifact]) -> list[dict[str, Any]]:
    names = ("pull", "validate", "train", "evaluate")
    return _steps(Store(project.store), *(made[name] for name in names))


def test_the_chain_leads_from_the_data_to_the_evaluation(tmp_path):
    project = Project(tmp_path)
    made = make_chain(project)
    steps = steps_of(project, made)
    assert [each["step"] for each in steps] == list(INPUTS)
    for each in steps:
        assert (each["key"], each["digest"]) == (made[each["step"]].key, made[each["step"]].digest)
        assert each["provenance"]["run"] == f"run of {each['step']}"
        assert each["provenance"]["machine"] == hardware.machine()
        assert each["provenance"]["uncommitted"] is None


def test_what_the_store_has_lost_is_not_recorded(tmp_path):
    project = Project(tmp_path)
    made, store = make_chain(project), Store(project.store)
    store.discard("embed", made["embed"].key)
    store.discard("evaluate", made["evaluate"].key)
    steps = steps_of(project, made)
    assert [each["step"] for each in steps] == ["pull", "validate", "embed", "train", "evaluate"]
    _, _, embed, _, evaluate = steps
    assert (embed["digest"], embed["key"], embed["plan"]) == (made["embed"].digest, None, None)
    assert (evaluate["key"], evaluate["plan"]) == (made["evaluate"].key, None)
    assert evaluate["provenance"]["run"] == "run of evaluate"  # DVC's copy has less


def test_a_version_carries_its_lineage(project, version, images):
    record = lineage.read(project, version)
    assert (record["model"], record["package"]) == ("toy", version.package_digest)
    assert record["weights"] == version.weights
    assert record["data"] == {
        "version": DATA.digest, "tracked": True, "revision": None, "pin": None, "path": "data"
    }  # fmt: skip
    assert record["requirements"] == hashlib.sha256(REQUIREMENTS.encode()).hexdigest()
    assert record["mlflow_run"] == version.run_id
    assert lineage.output_of(record, "train")["digest"] == version.train_digest
    assert lineage.output_of(record, "train")["provenance"]["commit"] == "c0ffee"
    assert record["metrics"] == version.metrics
    listed = images[1].folder / image_table.FILE_NAME
    assert record["images"]["splits"] == lineage.digests_of_images(listed)
    assert record["images"]["splits"]["test"]["rows"] == ROWS


def run_command(capsys, *arguments: str) -> tuple[int, str, str]:
    return (main(["lineage", *arguments]), *capsys.readouterr())


def test_the_command_prints_the_chain(project, version, capsys):
    for reference in ("toy", "toy@1"):
        code, output, _ = run_command(capsys, reference)
        assert code == 0
        assert "toy version 1 (champion, reference), registered" in output
    assert f"package      {version.package_digest}" in output
    assert "data         path data, version data-1, tracked True" in output
    record = lineage.read(project, version)
    assert f"test rows {ROWS}, sha256 {record['images']['splits']['test']['sha256']}" in output
    assert "machine      not recorded" in output  # the toy's training was in no step
    document = json.loads(run_command(capsys, "toy", "--json")[1])
    assert document["file"] is None
    assert document["lineage"]["images"]["splits"] == record["images"]["splits"]
    assert document["decisions"][0]["action"] == "promoted"


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("toy@9", "toy has no version '9'. There are: 1, champion, reference."),
        ("tyo", "No workload 'tyo' in params.yaml or run here. Did you mean 'toy'?"),
        ("@1", "'@1' names no version. Write NAME, NAME@ALIAS or NAME@NUMBER."),
        ("none.parquet", "none.parquet is no Parquet file that can be read"),
    ],
)
def test_what_names_no_version_is_one_line(version, capsys, subject, message):
    found, output, errors = run_command(capsys, subject)
    assert (found, output, len(errors.splitlines())) == (2, "", 1)
    assert message in errors
