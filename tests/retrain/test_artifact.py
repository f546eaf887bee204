import json
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import pytest

from retrain.artifact import MANIFEST, Origin, Store, make
from retrain.project import Project
from retrain.step import DataVersion, Step, Workspace, difference, plan
from retrain.workload import Data, Model, Train, Workload

DATA = DataVersion("abc", tracked=True)
WORKLOAD = Workload(name="toy", data=Data(path="x"), model=Model(family="vit"))


def write_lr(recipe: Train, data: DataVersion, workspace: Workspace) -> dict:
    (workspace.folder / "lr.txt").write_text(str(recipe.lr))
    (workspace.report / "time.txt").write_text(str(time.time_ns()))
    return {"lr": recipe.lr}


STEP = Step("toy", write_lr, reads=("train.lr",), inputs=("data",), libraries=("numpy",))


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def origin(tmp_path):
    return Origin("run-1", Project(tmp_path))


def with_lr(lr: float) -> Workload:
    return WORKLOAD.model_copy(update={"train": Train(lr=lr)})


def make_toy(store, origin, workload=WORKLOAD, step=STEP, refresh=False):
    now = plan(step, workload, [DATA])
    return make(store, step, now, workload, [DATA], origin, refresh=refresh)


def test_the_same_plan_is_made_once(store, origin):
    first = make_toy(store, origin)
    again = make_toy(store, replace(origin, run="run-2"))
    assert again == first
    assert again.made["run"] == "run-1"


def test_what_the_step_does_not_read_is_not_in_the_key():
    other = WORKLOAD.model_copy(update={"train": Train(epochs=99)})
    assert plan(STEP, other, [DATA]).key == plan(STEP, WORKLOAD, [DATA]).key
    assert plan(STEP, with_lr(0.5), [DATA]).key != plan(STEP, WORKLOAD, [DATA]).key


def test_the_difference_between_two_plans_is_said_in_words():
    before = plan(STEP, with_lr(0.001), [DATA])
    now = plan(STEP, with_lr(0.0005), [replace(DATA, digest="def")])
    now = replace(now, code={"tests.toy": "2"}, libraries={"numpy": "9"})
    said = difference(replace(before, code={"tests.toy": "1"}, libraries={"numpy": "8"}), now)
    assert said == ("train.lr 0.001 -> 0.0005, the data changed, code of tests.toy, numpy 8 -> 9")


def test_reports_are_outside_the_digest(store, origin):
    first = make_toy(store, origin)
    again = make_toy(store, origin, refresh=True)
    assert again.digest == first.digest
    assert make_toy(store, origin, with_lr(0.5)).digest != first.digest


def test_the_manifest_lists_every_file_with_its_size_and_hash(store, origin):
    made = make_toy(store, origin)
    manifest = json.loads((made.folder / MANIFEST).read_text())
    assert [file["path"] for file in manifest["files"]] == ["lr.txt", "report/time.txt"]
    assert manifest["files"][0]["bytes"] == (made.folder / "lr.txt").stat().st_size
    assert manifest["plan"]["config"] == {"train.lr": 0.001}


def test_no_path_or_time_is_in_the_key_or_the_digest(tmp_path):
    here = make_toy(Store(tmp_path / "a"), Origin("1", Project(tmp_path)))
    there = make_toy(Store(tmp_path / "b" / "c"), Origin("2", Project(tmp_path / "b")))
    assert (here.key, here.digest) == (there.key, there.digest)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / "lr.txt").unlink(), "lr.txt is gone"),
        (lambda folder: (folder / "lr.txt").write_text("longer than before"), "changed its size"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "cannot be read"),
        (lambda folder: (folder / MANIFEST).unlink(), "artifact is gone"),
    ],
)
def test_a_damaged_artifact_is_made_again(store, origin, harm, said):
    first = make_toy(store, origin)
    harm(first.folder)
    assert said in store.damage("toy", first.key)
    again = make_toy(store, replace(origin, run="run-2"))
    assert again.made["run"] == "run-2"
    assert (again.folder / "lr.txt").read_text() == "0.001"


def test_a_step_that_fails_leaves_nothing_behind(store, origin):
    def fail(recipe: Train, data: DataVersion, workspace: Workspace) -> dict:
        (workspace.folder / "half.txt").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        make_toy(store, origin, step=replace(STEP, function=fail))
    left = [path for path in (store.root / "toy").rglob("*") if path.suffix != ".lock"]
    assert left == []


def test_a_refresh_that_fails_keeps_the_artifact_that_was_there(store, origin):
    made = make_toy(store, origin)
    fail = replace(STEP, function=lambda *_: 1 / 0)
    now = plan(STEP, WORKLOAD, [DATA])
    with pytest.raises(ZeroDivisionError):
        make(store, fail, now, WORKLOAD, [DATA], origin, refresh=True)
    assert store.find("toy", made.key) == made


def test_two_runs_that_want_the_same_key_do_the_work_once(store, origin):
    calls = []

    def slow(recipe: Train, data: DataVersion, workspace: Workspace) -> dict:
        calls.append(1)
        time.sleep(0.3)
        return {}

    step = replace(STEP, function=slow)
    arguments = (store, origin, WORKLOAD, step)
    threads = [threading.Thread(target=make_toy, args=arguments) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_a_run_killed_in_the_middle_leaves_no_artifact_and_the_next_one_makes_it(tmp_path):
    program = textwrap.dedent(
        f"""
        import os, signal, sys
        from dataclasses import replace
        from pathlib import Path
        from tests.retrain import test_artifact as toys
        from retrain.artifact import Origin, Store
        from retrain.project import Project

        def killed(recipe, data, workspace):
            (workspace.folder / "half.txt").write_text("half")
            (workspace.scratch / "checkpoint").write_text("3")
            os.kill(os.getpid(), signal.SIGKILL)

        store, origin = Store(Path({str(tmp_path)!r}) / "store"), Origin("1", Project(Path(".")))
        now = toys.plan(toys.STEP, toys.WORKLOAD, [toys.DATA])
        toys.make(store, replace(toys.STEP, function=killed), now, toys.WORKLOAD,
                  [toys.DATA], origin)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    store, origin = Store(tmp_path / "store"), Origin("run-2", Project(tmp_path))
    key = plan(STEP, WORKLOAD, [DATA]).key
    assert store.find("toy", key) is None
    assert (store.scratch("toy", key) / "checkpoint").read_text() == "3"
    made = make_toy(store, origin)
    assert sorted(p.name for p in made.folder.iterdir()) == ["lr.txt", MANIFEST, "report"]
