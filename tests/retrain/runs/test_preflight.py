"""Faults that would make a run fail are found before its first step."""

import subprocess

import pytest

from flows.train import train
from flows.validate import validate
from retrain.errors import UsageError
from retrain.project import Project
from retrain.runs import preflight
from retrain.runs.run import Run
from retrain.step import DataVersion
from retrain.workload import Data, Gate, Model, Train, Workload
from tasks.train import job


def workload(**sections):
    given = {"data": Data(path="data/digits"), "model": Model(family="vit")} | sections
    given.setdefault("train", Train(precision="fp32"))  # is decided when a workload is read
    return Workload(name="toy", **given)


def faults(tmp_path, **sections):
    with pytest.raises(UsageError) as error:
        preflight.check(train.steps, workload(**sections), Project(tmp_path))
    return str(error.value).splitlines()


def test_each_fault_is_a_line(tmp_path):
    validate.check(workload(limits={"evaluate": 3}), Project(tmp_path))  # a step of another flow
    gate = Gate(min={"acuracy": 0.9}, metric="loss")
    assert faults(tmp_path, gate=gate, limits={"trian": 1.0}) == [
        "workload toy: limits.trian: no such step. Did you mean 'train'?",
        "gate.min.acuracy: no metric 'acuracy'. Did you mean 'accuracy'?",
        "gate.metric: no metric 'loss'. Did you mean 'log_loss'?",
    ]


@pytest.mark.parametrize("path", [".", "data/..", "{root}", "/"])
def test_the_project_itself_is_no_data(tmp_path, path):
    [fault] = faults(tmp_path, data=Data(path=path.format(root=tmp_path)))
    assert "holds this project itself" in fault


@pytest.mark.parametrize(
    ("gpus", "variable", "name", "said"),
    [(0, "CXX", "g++", "no C++ compiler"), (1, "CC", "gcc", "no C compiler")],
)
def test_a_missing_compiler_is_said_before_it_is_called(
    tmp_path, monkeypatch, gpus, variable, name, said
):
    monkeypatch.setattr(job, "gpu_capabilities", lambda: [9.0] * gpus)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(variable, raising=False)
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
    with pytest.raises(UsageError, match="images of 224 x 224 pixels"):
        told(tmp_path, steps=train.steps[4:5], workload=workload(model=model))


def told(root, warning=None, steps=(), workload=None):
    version = DataVersion("digest", tracked=True, warning=warning)
    return preflight.notices(steps, workload, Project(root), version)


def write(folder, *names):
    for name in names:
        (folder / name).write_text(f"{name} {len(names)}")


def test_files_that_differ_from_the_commit_are_named_up_to_three(tmp_path, monkeypatch):
    assert told(tmp_path, "data/ differs.") == ["data/ differs."]  # no repository
    write(tmp_path, "params.yaml", "a.py", "data.dvc")
    for command in ("init -q", "add -A", "-c user.name=t -c user.email=t@t commit -qm start"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    start = "These files differ from the commit that the run is recorded with: "
    for names, said in (
        (("data.dvc", "new.txt"), []),  # not of the code
        (("params.yaml",), [f"{start}params.yaml."]),
        (("a.py", "b.py"), [f"{start}a.py, b.py, params.yaml."]),
        (("c.py", "d.py"), [f"{start}a.py, b.py, c.py and 2 more."]),
    ):
        write(tmp_path, *names)
        assert told(tmp_path) == said
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    [sentence] = told(tmp_path)
    assert sentence.startswith("No commit is recorded, because git does not tell it (fatal: ")
    assert "dubious ownership" in sentence
    assert len(sentence.splitlines()) == 1


def test_a_strict_run_takes_what_is_told_as_an_error(tmp_path):
    strict = Run("train", workload(), DataVersion("d", True), Project(tmp_path), "1", strict=True)
    strict.warn()
    with pytest.raises(UsageError) as error:
        strict.warn("One.", "Two.")
    assert str(error.value).splitlines() == [
        "workload toy: One.", "Two.", "A strict run (--strict) takes this as an error.",
    ]  # fmt: skip
