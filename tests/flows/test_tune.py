"""The search for better parameters: its trials are trainings, and a killed one goes on."""

import os
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from flows import tune
from flows.reports import tuning
from retrain.errors import UsageError
from retrain.params import load_workload, parse_override
from retrain.project import Project
from retrain.registry import decisions, tracking, versions
from retrain.runs.run import Run
from retrain.search import COMPLETE, FAILED, JOURNAL, PRUNED, Ending
from retrain.step import DataVersion
from retrain.store import Artifact, Store
from tests.flows.conftest import ROOT, until

SHIFT = "train.augment.shift: {low: 0, high: 1}"
SPACE = f"tune.space={{{SHIFT}, train.lr: {{choices: [0.003, 1e30]}}}}"
SEARCH = ("--set", SPACE)


def search(clone, *arguments):
    return clone.json("tune", "vit", *arguments)


def would(clone, *command):
    """What a run would do with each step."""
    preview = clone.json(*command, "--dry-run")
    return {step["step"]: step["would"] for step in preview["steps"]}


def mlflow_runs(clone):
    client = tracking.client(Project(clone.root))
    experiment = client.get_experiment_by_name("vit")
    return client.search_runs([experiment.experiment_id])


def mlflow_runs_of(clone, document):
    """The runs of a search, without its trials."""
    key = document["search"]["key"]
    return [run for run in mlflow_runs(clone) if run.data.tags.get(tracking.KEY) == key]


def nested(clone, parent):
    tag = "mlflow.parentRunId"
    return [run for run in mlflow_runs(clone) if run.data.tags.get(tag) == parent.info.run_id]


@pytest.fixture(scope="module")
def searched(clone, first):
    """The document of a search of the whole of a small space: two trials of four fail."""
    return search(clone, *SEARCH)


def test_trials_are_trainings_and_one_that_diverges_is_no_end(clone, first, searched):
    trials = searched["trials"]
    assert sorted(each["trial"] for each in trials) == [0, 1, 2, 3]  # all that there are, of 20
    [own] = [each for each in trials if each["trial"] == 0]
    assert own["values"] == {"train.augment.shift": 1, "train.lr": 0.003}  # the workload's
    assert own["cached"]  # it was trained before
    assert [each["state"] for each in trials] == [COMPLETE, COMPLETE, FAILED, FAILED]
    assert [each["values"]["train.lr"] for each in trials] == [0.003, 0.003, 1e30, 1e30]
    assert all("diverged in epoch 1" in each["reason"] for each in trials[2:])
    best, other = trials[:2]
    assert searched["best"] == best
    assert best["best"]["val_accuracy"] >= other["best"]["val_accuracy"]
    assert f"trial {best['trial']} is the best of 4: val_accuracy" in searched["outcome"]


def test_nothing_is_registered_and_mlflow_has_the_search_with_its_trials(clone, first, searched):
    assert [step["step"] for step in searched["steps"]] == [
        "pull", "validate", "preprocess", "train",
    ]  # fmt: skip
    project = Project(clone.root)
    assert versions.champion(project, "vit").version == first["model"]["version"]
    assert len(decisions.read(project, "vit").entries) == 1
    assert [step for step, _ in Store(project.store).entries()].count("evaluate") == 1
    [parent] = mlflow_runs_of(clone, searched)
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["val_accuracy"] == searched["best"]["best"]["val_accuracy"]
    statuses = sorted(run.info.status for run in nested(clone, parent))
    assert statuses == ["FAILED", "FAILED", "FINISHED"]


def test_a_search_that_is_over_does_nothing_more_and_a_changed_one_begins(clone, searched):
    command = shlex.split(searched["command"])  # the training with the best values
    assert command[:3] == ["retrain", "train", "vit"]
    assert would(clone, *command[1:])["train"] == "come from the cache"
    assert would(clone, *command[1:-1], "train.lr=0.004")["train"] == "run"
    again = search(clone, *SEARCH)
    assert again["unchanged"]
    assert (again["best"], again["command"]) == (searched["best"], searched["command"])
    assert would(clone, "tune", "vit", *SEARCH)["train"] == "come from the cache"
    more = SPACE.replace("1e30", "0.004, 0.005, 0.006")
    preview = clone.retrain("tune", "vit", "--set", more, "--trials", "7", "--dry-run").stdout
    assert "train would be the first step to run: 0 of 7 trials are over." in preview
    assert "trial" in clone.retrain("status", "vit").stdout


def test_a_search_whose_trials_all_failed_is_tried_again(clone, first):
    command = ("tune", "vit", "--set", "tune.space={train.lr: {choices: [1e30, 2e30]}}")
    for _ in range(2):
        failed = clone.retrain(*command, code=1)
        assert failed.stdout.count("failed: The training diverged in epoch 1") == 2
        assert "All 2 trials failed. Change tune.space." in failed.stderr
    assert would(clone, *command)["train"] == "run"


LONG = (
    *("--set", "train.epochs=30", "--set", "scale.checkpoint_seconds=0.1"),
    *("--set", "tune.space={train.lr: {low: 0.001, high: 0.01, log: true}}"),
)


@pytest.mark.slow
def test_a_killed_search_goes_on_with_the_trial_that_was_running(clone, first, tmp_path):
    arguments = ("tune", "vit", *LONG, "--trials", "2")
    process = clone.start(*arguments, output=tmp_path / "output")
    scratch = clone.root / ".retrain/store/scratch"

    try:
        until(lambda: list(scratch.glob("train/*/reports.json")), 180)
    finally:
        process.kill()
        process.wait()

    done = clone.retrain("tune", "vit", *LONG, "--trials", "2")
    assert "train continues at step" in done.stdout
    document = search(clone, *LONG, "--trials", "2")
    assert sorted(trial["trial"] for trial in document["trials"]) == [0, 1]
    assert {trial["state"] for trial in document["trials"]} <= {COMPLETE, PRUNED}
    [parent] = mlflow_runs_of(clone, document)  # none was begun again
    assert parent.info.status == "FINISHED"
    assert [each.info.status for each in nested(clone, parent)] == ["FINISHED"] * 2  # none is left


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("{}", "tune.space: nothing to search."),
        ("{train.lrr: {choices: [1]}}", "with train.lrr=1: train.lrr: no such key. Did you mean"),
        ("{train.lr: {low: 0, high: 0.1}}", "with train.lr=0.0: train.lr: should be greater"),
        ("{train.optimizer: {choices: [sdg]}}", "train.optimizer: should be"),
        ("{model.heads: {choices: [4, 5]}}", "with model.heads=5: model.heads: 5 does not divide"),
        ("{gate.margin: {choices: [0.1]}}", "tune.space.gate.margin: no training depends on it"),
        ("{train.best.mode: {choices: [max]}}", "tune.space.train.best.mode: trials are compared"),
        ("{train.arguments: {choices: [{a: 1}]}}", "train.arguments: the project's own"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_before_anything_runs(space, said):
    project, overrides = Project(ROOT), dict([parse_override(f"tune.space={space}")])
    tune.tune.check(load_workload(project.params, "vit"), project)
    with pytest.raises(UsageError) as error:
        tune.tune.check(load_workload(project.params, "vit", overrides), project)
    assert said in str(error.value)


@pytest.mark.slow
def test_trials_run_side_by_side(clone, first):
    space = "tune.space={train.lr: {choices: [0.002, 0.003, 1e30]}}"
    trials = search(clone, "--set", space, "--parallel", "2")["trials"]
    assert [trial["state"] for trial in trials] == [COMPLETE, COMPLETE, FAILED]
    assert "diverged in epoch 1" in trials[2]["reason"]
    assert would(clone, "train", "vit", "--set", "train.lr=0.002")["train"] == "come from the cache"


def test_a_trial_that_ray_kills_has_failed_and_the_search_goes_on(ray_session):
    import ray
    from ray.exceptions import OutOfMemoryError

    @ray.remote(max_retries=0)
    def trial(ends_by):
        if ends_by == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OutOfMemoryError("the node ran out of memory")

    for ends_by in ("signal", "memory"):
        ended = tune._result(trial.remote(ends_by))
        assert (ended.state, ended.reached) == (FAILED, [])
        assert ended.reason


def test_the_best_trial_is_complete_and_a_search_whose_trials_all_failed_fails(tmp_path):
    workload = load_workload(ROOT / "params.yaml", "vit")
    run = Run("tune", workload, DataVersion("d", True), Project(tmp_path), "run")
    images = Artifact("preprocess", "key", "digest", Path(), {"storage": "pixels"})
    run.artifacts |= {"preprocess": images, "pull": replace(images, step="pull")}
    folder = tuning.folder_of(run)
    folder.mkdir(parents=True)
    (folder / JOURNAL).touch()
    trials = tuning.search_of(run)
    trials.begin(workload.flat())

    def end(status, loss=None, reason=None):
        best = loss and {"epoch": 1, "val_accuracy": 0.5, "val_loss": loss}
        ended = Ending(status, best, [0.5] if loss else [], reason, False, 1.0)
        trials.tell(trials.next()[0], ended)

    end(FAILED, reason="It diverged.")
    message = r"All 1 trials failed\. Change tune\.space\. It diverged\."
    with pytest.raises(ValueError, match=message):
        tuning.best_of(workload, trials)
    for status, loss in ((COMPLETE, 0.3), (COMPLETE, 0.2), (PRUNED, 0.1)):
        end(status, loss)
    assert [row["trial"] for row in tuning.ranked(workload, trials)] == [2, 1, 3, 0]
    assert tune.tune.tells.document(run)["best"]["trial"] == 2
