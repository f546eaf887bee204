import pytest
from mlflow.exceptions import MlflowException

from retrain.project import Project
from retrain.registry import tracking
from retrain.runs import console

PARAMS = {"train.lr": 0.001, "model.family": "vit", "model.pretrained": None}
EPOCH = {
    "train_loss": 1.0, "val_loss": 2.0, "val_accuracy": 0.5,
    "lr": 0.001, "images_per_second": 100.0, "seconds": 1.0,
}  # fmt: skip


def start(project, key, workload="digits", **more):
    return tracking.start_run(project, workload, key, PARAMS, "ab" * 32, **more)


@pytest.mark.parametrize("status", ["RUNNING", "FAILED", "KILLED", "FINISHED", None])
def test_a_run_is_continued_in_any_state_and_no_other_is_begun_until_it_has_finished(
    project, status
):
    mlflow, key = tracking.client(project), f"one {status}"
    first = start(project, key)
    if status is None:
        mlflow.delete_run(first)
        assert start(project, key, continued=first) != first
        assert not tracking.log_metrics(project, first, {"rows": 3.0})
        return
    mlflow.set_terminated(first, status)
    assert start(project, key, continued=first) == first
    run = mlflow.get_run(first)
    assert run.info.status == "RUNNING"
    assert len(run.inputs.dataset_inputs) == 1
    mlflow.set_terminated(first, status)
    assert (start(project, key) == first) == (status != "FINISHED")


def test_an_experiment_that_was_deleted_is_restored(project):
    mlflow, name = tracking.client(project), "deleted"
    start(project, "before", name)
    mlflow.delete_experiment(mlflow.get_experiment_by_name(name).experiment_id)
    assert tracking.is_active(project, start(project, "after", name))
    found = mlflow.get_experiment_by_name(name)
    assert found.lifecycle_stage == "active"
    assert tracking.local_path(found.artifact_location) == project.root / "mlruns" / name


def test_a_run_records_what_it_was_made_from(project):
    of_repository = Project(project.root)
    vars(of_repository)["commit"] = "c0ffee"
    run = tracking.client(project).get_run(start(of_repository, "five" * 9))
    expected = {"train.lr": "0.001", "model.family": "vit", "model.pretrained": "None"}
    assert run.data.params == expected
    assert run.data.tags["mlflow.source.git.commit"] == "c0ffee"
    assert run.info.run_name == "digits-fivefive"
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


def test_what_was_mended_is_told_where_a_person_looks(monkeypatch, caplog, capsys, tmp_path):
    caplog.set_level("INFO", "retrain")
    tracking.tell("mended [a]")
    assert (capsys.readouterr().err, caplog.messages) == ("mended [a]\n", [])
    monkeypatch.setattr(console.Output, "log", tmp_path / "run.log")  # in a run
    tracking.tell("mended [b]")
    assert (capsys.readouterr().err, caplog.messages) == ("", ["mended [b]"])


def test_what_another_process_set_first_is_set_at_the_second_try():
    given = []

    def set_tag(value):
        given.append(value)
        if len(given) == 1:
            raise MlflowException("UNIQUE constraint failed")

    tracking.set_at_once(set_tag, "a")
    assert given == ["a", "a"]
