"""Faults that would make a run fail are found before its first step."""

import os
import subprocess
from pathlib import Path

import pytest

from flows.train import train
from flows.tune import tune
from flows.validate import validate
from retrain.errors import UsageError
from retrain.project import Project
from retrain.runs import preflight
from retrain.runs.run import Run
from retrain.step import DataVersion
from retrain.workload import Data, Gate, Model, Scale, Train, Workload
from tasks.train import job

ROOT = Path(__file__).parents[2]


def workload(**sections):
    given = {"data": Data(path="data/digits"), "model": Model(family="vit")} | sections
    given.setdefault("train", Train(precision="fp32"))  # is decided when a workload is read
    return Workload(name="toy", **given)


def faults(tmp_path, **sections):
    with pytest.raises(UsageError) as error:
        preflight.check(train.steps, workload(**sections), Project(tmp_path))
    return str(error.value).splitlines()


def test_a_flow_of_fewer_steps_takes_a_workload_with_time_limits_of_others():
    limited = workload(limits={"evaluate": 3})
    validate.check(limited, Project(ROOT))
    with pytest.raises(UsageError, match="no such step"):
        preflight.check(tune.steps, limited, Project(ROOT))


def test_each_fault_is_a_line(tmp_path):
    message = faults(
        tmp_path, gate=Gate(min={"acuracy": 0.9}, metric="loss"), limits={"trian": 1.0}
    )
    assert message == [
        "workload toy: limits.trian: no such step. Did you mean 'train'?",
        "gate.min.acuracy: no metric 'acuracy'. Did you mean 'accuracy'?",
        "gate.metric: no metric 'loss'. Did you mean 'log_loss'?",
    ]


@pytest.mark.parametrize("path", [".", "data/..", "{root}", "/"])
def test_the_project_itself_is_no_data(tmp_path, path):
    [fault] = faults(tmp_path, data=Data(path=path.format(root=tmp_path)))
    assert "holds this project itself" in fault


@pytest.mark.parametrize(
    ("gpus", "scale", "fault"),
    [
        (0, {"workers": 0, "require_gpu": True}, "scale.require_gpu: 0 GPUs for 1 workers"),
        (1, {"workers": 2, "require_gpu": True}, "scale.require_gpu: 1 GPUs for 2 workers"),
    ],
)
def test_gpus_that_are_not_there_are_refused(tmp_path, monkeypatch, gpus, scale, fault):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(job, "gpu_capabilities", lambda: [9.0] * gpus)
    [line] = faults(tmp_path, scale=Scale(**scale))
    assert fault in line
    monkeypatch.setattr(job, "gpu_capabilities", lambda: [9.0] * 2)
    preflight.check(train.steps, workload(scale=Scale(**scale)), Project(tmp_path))


@pytest.mark.parametrize(
    ("gpus", "variable", "name", "said"),
    [(0, "CXX", "g++", "no C++ compiler"), (1, "CC", "gcc", "no C compiler")],
)
def test_a_missing_compiler_is_said_before_it_is_called(
    tmp_path, monkeypatch, gpus, variable, name, said
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(job, "gpu_capabilities", lambda: [9.0] * gpus)
    monkeypatch.setenv("PATH", str(tmp_path))
    compiled = Train(precision="fp32", compile=True)
    [fault] = faults(tmp_path, train=compiled)
    assert f"train.compile: there is {said}" in fault
    (tmp_path / name).touch(0o755)
    preflight.check(train.steps, workload(train=compiled), Project(tmp_path))
    monkeypatch.setenv(variable, "/nowhere/compiler")
    assert said in faults(tmp_path, train=compiled)[0]


def test_what_takes_seconds_to_find_is_said_when_a_run_is_about_to_start(tmp_path):
    model = Model(family="auto", config={"model_type": "vit", "patch_size": 300})
    preflight.check(train.steps, workload(model=model), Project(tmp_path))
    with pytest.raises(UsageError) as error:
        told(tmp_path, steps=train.steps[4:5], workload=workload(model=model))
    assert "images of 224 x 224 pixels" in str(error.value)


def git(folder, *arguments, **more):
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=os.environ | more)


def commit(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"{name} {len(names)}")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "some files")


def told(root, warning=None, steps=(), workload=None):
    version = DataVersion("digest", tracked=True, warning=warning)
    return preflight.notices(steps, workload, Project(root), version)


def test_files_that_differ_from_the_commit_are_named_up_to_three(tmp_path):
    assert told(tmp_path) == []  # no repository
    git(tmp_path, "init", "-q")
    commit(tmp_path, "params.yaml", "a.py", "data.dvc")
    for name in ("data.dvc", "new.txt"):  # not of the code
        (tmp_path / name).write_text("changed")
    assert told(tmp_path) == []
    (tmp_path / "params.yaml").write_text("changed")
    start = "These files differ from the commit that the run is recorded with: "
    assert told(tmp_path) == [f"{start}params.yaml."]
    for name in ("a.py", "b.py", "c.py", "d.py"):
        (tmp_path / name).write_text("new or changed")
    assert told(tmp_path) == [f"{start}a.py, b.py, c.py and 2 more."]


def test_a_repository_that_git_refuses_is_one_sentence(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    commit(tmp_path, "code.py")
    assert told(tmp_path) == []
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    [sentence] = told(tmp_path)
    assert sentence.startswith("No commit is recorded, because git does not tell it (fatal: ")
    assert "dubious ownership" in sentence
    assert len(sentence.splitlines()) == 1


def test_what_the_data_and_the_steps_tell_comes_too(tmp_path):
    assert told(tmp_path, "data/ differs.") == ["data/ differs."]
    strict = Run("train", workload(), DataVersion("d", True), Project(tmp_path), "1", strict=True)
    strict.warn()
    with pytest.raises(UsageError) as error:
        strict.warn("One.", "Two.")
    assert str(error.value).splitlines() == [
        "workload toy: One.", "Two.", "A strict run (--strict) takes this as an error.",
    ]  # fmt: skip
