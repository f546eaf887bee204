"""Faults that would make a run fail are found before its first step."""

import socket

import pytest

from flows.train import PIPELINE
from retrain import preflight
from retrain.errors import UsageError
from retrain.project import Project
from retrain.workload import Data, Gate, Model, Scale, Workload
from tasks.train import step as train_step


def workload(**sections):
    given = {"data": Data(path="data/digits"), "model": Model(family="vit")} | sections
    return Workload(name="toy", **given)


def faults(tmp_path, **sections):
    with pytest.raises(UsageError) as error:
        preflight.check(PIPELINE.steps, workload(**sections), Project(tmp_path))
    return str(error.value).splitlines()


def test_a_workload_without_fault_passes(tmp_path):
    rules = Gate(min={"accuracy": 0.9}, max={"log_loss": 1.0}, metric="macro_f1")
    preflight.check(PIPELINE.steps, workload(gate=rules, limits={"train": 3}), Project(tmp_path))


def test_each_fault_is_a_line(tmp_path):
    message = faults(
        tmp_path, gate=Gate(min={"acuracy": 0.9}, metric="loss"), limits={"trian": 1.0}
    )
    assert message == [
        "workload toy: limits.trian: no such step. Did you mean 'train'?",
        "gate.min.acuracy: no metric 'acuracy'. Did you mean 'accuracy'?",
        "gate.metric: no metric 'loss'. Did you mean 'log_loss'?",
    ]


@pytest.mark.parametrize("path", ["..", "data/..", "{root}", "/"])
def test_the_project_itself_is_no_data(tmp_path, path):
    [fault] = faults(tmp_path, data=Data(path=path.format(root=tmp_path)))
    assert "holds this project itself" in fault


@pytest.mark.parametrize(("found", "workers"), [(0, 0), (1, 2)])
def test_required_gpus_that_are_not_there_are_refused(tmp_path, monkeypatch, found, workers):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(train_step, "gpu_capabilities", lambda: [9.0] * found)
    [fault] = faults(tmp_path, scale=Scale(workers=workers, require_gpu=True))
    assert f"scale.require_gpu: {found} GPUs for {max(workers, 1)} workers" in fault


def test_required_gpus_that_are_there_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(train_step, "gpu_capabilities", lambda: [9.0] * 2)
    scale = Scale(workers=2, require_gpu=True)
    preflight.check(PIPELINE.steps, workload(scale=scale), Project(tmp_path))


def test_a_file_in_the_place_of_the_store_is_found_before_a_run(tmp_path, monkeypatch):
    store = tmp_path / "store"
    store.touch()
    monkeypatch.setenv("RETRAIN_STORE", str(store))
    with pytest.raises(ValueError, match=r"store is a file, and a folder is needed there"):
        preflight.check_surroundings(Project(tmp_path))


def test_a_folder_that_cannot_be_written_to_is_found_before_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRAIN_STORE", "/proc/store")  # also root cannot write there
    with pytest.raises(ValueError, match=r"^/proc/store cannot be written to\."):
        preflight.check_surroundings(Project(tmp_path))


def test_an_mlflow_server_that_is_down_is_found_before_a_run(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match="MLFLOW_TRACKING_URI: nothing answers"):
        preflight.check_surroundings(Project(tmp_path))
