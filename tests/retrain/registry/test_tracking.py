import socket
import subprocess

import pytest

from retrain.project import Project
from retrain.registry import tracking
from tests import templates

PARAMS = {"train.lr": 0.001, "model.family": "vit", "model.pretrained": None}
EPOCH = {
    "train_loss": 1.0, "val_loss": 2.0, "val_accuracy": 0.5,
    "lr": 0.001, "images_per_second": 100.0, "seconds": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    templates.place_mlflow_database(root)
    return Project(root)


def start(project, key, workload="digits", **more):
    return tracking.start_run(project, workload, key, PARAMS, "ab" * 32, **more)


@pytest.mark.parametrize("status", ["RUNNING", "FAILED", "KILLED", "FINISHED"])
def test_a_run_is_continued_in_any_state_and_no_other_is_begun_until_it_has_finished(
    project, status
):
    key = f"one {status}"
    first = start(project, key)
    tracking.client(project).set_terminated(first, status)
    assert start(project, key, continued=first) == first
    run = tracking.client(project).get_run(first)
    assert run.info.status == "RUNNING"
    assert len(run.inputs.dataset_inputs) == 1
    tracking.client(project).set_terminated(first, status)
    assert (start(project, key) == first) == (status != "FINISHED")


def test_a_run_that_was_deleted_is_not_continued(project):
    first = start(project, "deleted")
    tracking.client(project).delete_run(first)
    assert start(project, "deleted", continued=first) != first


def test_a_run_records_what_it_was_made_from(project, tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(
        ["git", *identity, "commit", "-q", "--allow-empty", "-m", "first"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    templates.place_mlflow_database(tmp_path)
    of_repository = Project(tmp_path)
    run_id = start(of_repository, "five")
    run = tracking.client(of_repository).get_run(run_id)
    assert run.data.params == {
        "train.lr": "0.001", "model.family": "vit", "model.pretrained": "None"
    }  # fmt: skip
    assert run.data.tags["mlflow.source.git.commit"] == of_repository.commit
    [used] = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("digits", ("ab" * 32)[:36])
    assert used.dataset.source == '{"digest": "' + "ab" * 32 + '"}'


@pytest.mark.parametrize("here", [True, False], ids=["copied", "by MLflow"])
def test_an_artifact_is_read_if_it_is_there(project, tmp_path, monkeypatch, here):
    run = start(project, f"of artifacts {here}")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "a b.txt").write_text("content")
    tracking.log_artifacts(project, run, tmp_path / "given", "texts")
    if not here:
        monkeypatch.setattr(tracking, "local_path", lambda _: None)
    assert tracking.read_artifact(project, run, "texts/a b.txt") == b"content"
    for path in ("texts/b.txt", "others/a b.txt"):
        assert tracking.read_artifact(project, run, path) is None
    assert tracking.read_artifact(project, "0" * 32, "texts/a b.txt") is None


def test_epochs_are_logged_once_at_their_numbers(project):
    run_id = start(project, "seven")
    many = [EPOCH | {"epoch": number} for number in range(1, 351)]  # MLflow takes 1,000 at once
    for epochs in (many[:2], many, many):
        tracking.log_epochs(project, run_id, epochs)
    logged = tracking.client(project).get_metric_history(run_id, "val_loss")
    assert [metric.step for metric in logged] == list(range(1, 351))


def test_the_best_epoch_is_logged_once_and_a_better_one_beside_it(project):
    run_id = start(project, "best")
    for accuracy in (0.5, 0.5, 0.75):
        tracking.log_best(project, run_id, EPOCH | {"val_accuracy": accuracy})
    mlflow = tracking.client(project)
    history = mlflow.get_metric_history(run_id, "best_val_accuracy")
    assert [metric.value for metric in history] == [0.5, 0.75]
    assert len(mlflow.get_metric_history(run_id, "best_val_loss")) == 1


def test_an_unreachable_server_is_reported_in_seconds(project, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match=f"nothing answers at http://127.0.0.1:{port}"):
        start(project, "thirteen")
