"""The store: what is made once, killed runs, damage, and the earlier output of a step."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest

from retrain.errors import DamagedArtifactError
from retrain.outputs import MANIFEST
from retrain.project import Project
from retrain.step import DataVersion, Step, Workspace, plan
from retrain.store import Store, discard_if_damaged, refuse_damaged, verify
from retrain.workload import Data, Model, Train, Workload
from tests import running
from tests.running import RunContext

DATA = DataVersion("abc", tracked=True).as_input
WORKLOAD = Workload(name="toy", data=Data(path="x"), model=Model(family="vit"))


def write_lr(definition: Train, data: DataVersion, workspace: Workspace) -> dict:
    (workspace.folder / "lr.txt").write_text(str(definition.lr))
    (workspace.report / "time.txt").write_text(str(time.time_ns()))
    return {"lr": definition.lr}


STEP = Step("toy", write_lr, reads=("train.lr",), inputs=("data",), libraries=("numpy",))


def with_lr(lr: float) -> Workload:
    return WORKLOAD.model_copy(update={"train": Train(lr=lr)})


def make_toy(store, context, workload=WORKLOAD, step=STEP, refresh=False, data=DATA):
    run = running.run_in(store, context, workload, refresh=refresh)
    return run.output(step, data)


@pytest.fixture
def made(store, context):
    return make_toy(store, context)


def edit_manifest(folder, **fields):
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | fields))


def flip(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_reports_paths_and_times_are_outside_the_key_and_the_digest(store, context, made, tmp_path):
    there = make_toy(Store(tmp_path / "b" / "c"), RunContext("2", Project(tmp_path / "b")))
    for again in (make_toy(store, context, refresh=True), there):
        assert (again.key, again.digest) == (made.key, made.digest)
    assert make_toy(store, context, with_lr(0.5)).digest != made.digest
    manifest = json.loads((made.folder / MANIFEST).read_text())
    assert [file["path"] for file in manifest["files"]] == ["lr.txt", "report/time.txt"]
    assert manifest["plan"]["config"] == {"train.lr": 0.001}


@pytest.mark.parametrize(
    ("harm", "damage"),
    [
        (lambda folder: (folder / "lr.txt").unlink(), "lr.txt is gone"),
        (lambda folder: (folder / "lr.txt").write_text("longer than before"), "changed its size"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "cannot be read"),
        (lambda folder: (folder / MANIFEST).unlink(), "artifact is gone"),
        (lambda folder: edit_manifest(folder, facts={"lr": 0.1}), f"{MANIFEST} has changed"),
        (lambda folder: edit_manifest(folder, digest="ab" * 32), f"{MANIFEST} has changed"),
        (lambda folder: edit_manifest(folder, files=[]), f"{MANIFEST} has changed"),
        (lambda folder: edit_manifest(folder, provenance={}), f"{MANIFEST} has changed"),
        (lambda folder: edit_manifest(folder, plan={"step": "toy"}), "cannot be read"),
        (  # under the key of another
            lambda folder: edit_manifest(folder, plan=asdict(plan(STEP, with_lr(0.5), [DATA]))),
            f"{MANIFEST} has changed",
        ),
    ],
)
def test_a_damaged_artifact_is_made_again(store, context, made, harm, damage):
    harm(made.folder)
    assert damage in store.damage("toy", made.key)
    assert store.find("toy", made.key) is None
    again = make_toy(store, replace(context, run="run-2"))
    assert again.provenance["run"] == "run-2"
    assert (again.folder / "lr.txt").read_text() == "0.001"


@pytest.mark.parametrize("refresh", [False, True])
def test_a_step_that_fails_leaves_what_was_there(store, context, refresh):
    def fail(definition: Train, data: DataVersion, workspace: Workspace) -> dict:
        (workspace.folder / "half.txt").write_text("half")
        raise ValueError("no")

    made = make_toy(store, context) if refresh else None
    with pytest.raises(ValueError, match="no"):
        make_toy(store, context, step=replace(STEP, function=fail), refresh=refresh)
    assert [store.find(*entry) for entry in store.entries()] == ([made] if refresh else [])
    assert not list((store.root / "toy").rglob("half.txt"))


def killed(definition, data, workspace):
    (workspace.folder / "half.txt").write_text("half")
    (workspace.scratch / "checkpoint").write_text("3")
    os.kill(os.getpid(), signal.SIGKILL)


KILLED = """
from dataclasses import replace
from pathlib import Path
from tests.retrain.test_store import *

step = replace(STEP, function=killed)
make_toy(Store(Path(sys.argv[1])), RunContext("1", Project(Path("."))), step=step)
"""


def test_a_run_killed_in_the_middle_leaves_no_artifact_and_the_next_one_makes_it(store, context):
    program = [sys.executable, "-c", KILLED, str(store.root)]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    key = plan(STEP, WORKLOAD, [DATA]).key
    assert store.find("toy", key) is None
    assert (store.partial("toy", key) / "half.txt").exists()
    assert (store.scratch("toy", key) / "checkpoint").read_text() == "3"
    made = make_toy(store, replace(context, run="run-2"))
    assert sorted(p.name for p in made.folder.iterdir()) == ["lr.txt", MANIFEST, "report"]
    left = [path.name for path in store.root.rglob("*") if key in path.name]
    assert sorted(left) == [f".{key}.lock", key]


def test_what_killed_runs_left_goes_even_if_the_output_is_there(store, context, made):
    store.partial("toy", made.key).mkdir()
    store.folder("toy", f".{made.key}.discarded").mkdir()
    (store.scratch("toy", made.key) / "checkpoint").write_text("of a refresh")
    assert len([*store.leftovers()]) == 3
    assert make_toy(store, replace(context, run="run-2")) == made
    assert list(store.leftovers()) == []


def test_of_two_runs_at_once_one_makes_it_and_the_other_takes_it(store, context):
    made = []

    def slow(definition: Train, data: DataVersion, workspace: Workspace) -> dict:
        made.append(data)
        time.sleep(0.3)
        return {}

    step = replace(STEP, function=slow)
    with ThreadPoolExecutor(2) as runs:
        first, second = runs.map(lambda _: make_toy(store, context, step=step), range(2))
    assert (first, len(made)) == (second, 1)


@pytest.mark.parametrize("name", ["lr.txt", "report/time.txt"])
def test_a_flipped_byte_is_found_wherever_it_is(store, context, made, name):
    make_toy(store, context, with_lr(0.5))
    assert verify(store) == []
    flip(made.folder / name)
    assert store.damage("toy", made.key) is None  # the size is the same
    [damage] = verify(store)
    assert (damage.step, damage.key, damage.reason) == ("toy", made.key, f"{name} has changed")
    with pytest.raises(DamagedArtifactError, match=f"{name} has changed"):
        refuse_damaged(store, made)
    assert not made.folder.exists()


def test_an_artifact_that_is_being_made_again_is_not_reported(store, made):
    flip(made.folder / "lr.txt")
    store.partial("toy", made.key).mkdir()
    with store.lock("toy", made.key):
        assert verify(store) == []
    assert len(verify(store)) == 1
    assert [path for _, _, path in store.leftovers()] == [store.partial("toy", made.key)]


def test_an_artifact_that_is_replaced_by_another_output_meanwhile_is_noticed(store, made):
    with pytest.raises(DamagedArtifactError, match="made again with another output"):
        refuse_damaged(store, replace(made, digest="ab" * 32))
    discard_if_damaged(store, "toy", made.key)
    assert store.find("toy", made.key) == store.find_digest("toy", made.digest) == made
    assert store.find_digest("other", made.digest) is store.find_digest("toy", "ab") is None


def test_an_artifact_that_is_damaged_again_ends_the_run(store, context):
    def body(version):
        raise DamagedArtifactError("toy", "ab", f"its {MANIFEST} has changed")

    with pytest.raises(DamagedArtifactError, match="made again"):
        running.run_in(store, context, WORKLOAD).follow(body)


given = []  # what a step was given of its earlier output


def look(definition: Train, version: DataVersion, workspace: Workspace) -> dict:
    given.append(workspace.earlier())
    return write_lr(definition, version, workspace)


def week(store, context, number, **options):
    """The output of a step of which the data of each week is another version."""
    data = DataVersion(f"week-{number}", tracked=True).as_input
    return make_toy(store, context, step=replace(STEP, function=look), data=data, **options)


@pytest.mark.parametrize(
    ("options", "is_given"),
    [({}, True), ({"workload": with_lr(0.5)}, False), ({"refresh": True}, False)],
)
def test_a_step_is_given_its_earlier_output_if_only_the_data_is_another(
    store, context, options, is_given
):
    first = week(store, context, 1)
    week(store, context, 2, **options)
    assert given[-2:] == [None, first.folder if is_given else None]


def test_a_step_is_not_given_an_earlier_output_that_has_changed(store, context):
    first = week(store, context, 1)
    flip(first.folder / "lr.txt")
    week(store, context, 2)
    assert given[-1] is None
    assert not first.folder.exists()
