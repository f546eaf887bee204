"""The search for better parameters: its trials are trainings, and a killed one goes on."""

import math
import shlex

import optuna
import pytest

from flows import tune
from retrain.params import load_workload, parse_override
from retrain.project import Project
from retrain.registry import decisions, versions
from retrain.store import Store
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


@pytest.fixture(scope="module")
def searched(clone, first):
    """The document of a search of the whole of a small space: two trials of four fail."""
    return search(clone, *SEARCH)


def test_trials_are_trainings_and_one_that_diverges_is_no_end(clone, first, searched):
    trials = searched["trials"]
    assert sorted(each["trial"] for each in trials) == [0, 1, 2, 3]  # all that there are, of 20
    [own] = [each for each in trials if each["trial"] == 0]
    assert own["values"] == {"train.augment.shift": 1, "train.lr": 0.003}  # the workload's
    assert [each["state"] for each in trials] == ["complete", "complete", "failed", "failed"]
    assert [each["values"]["train.lr"] for each in trials] == [0.003, 0.003, 1e30, 1e30]
    assert all("diverged in epoch 1" in each["reason"] for each in trials[2:])
    best, other = trials[:2]
    assert searched["best"] == best
    assert best["best"]["val_accuracy"] >= other["best"]["val_accuracy"]
    assert f"trial {best['trial']} is the best of 4: val_accuracy" in searched["outcome"]


def test_nothing_is_registered(clone, first, searched):
    assert [step["step"] for step in searched["steps"]] == [
        "pull", "validate", "preprocess", "train",
    ]  # fmt: skip
    project = Project(clone.root)
    assert versions.champion(project, "vit").version == first["model"]["version"]
    assert len(decisions.read(project, "vit").entries) == 1
    assert [step for step, _ in Store(project.store).entries()].count("evaluate") == 1


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


@pytest.mark.slow
def test_a_search_whose_trials_all_failed_fails_until_it_is_refreshed(clone, first):
    command = ("tune", "vit", "--set", "tune.space={train.lr: {choices: [1e30, 2e30]}}")
    for options, trained in (((), 2), ((), 0), (("--refresh",), 2)):
        failed = clone.retrain(*command, *options, code=1)
        assert failed.stdout.count("failed: The training diverged in epoch 1") == trained
        assert "All 2 trials failed. Change tune.space." in failed.stderr


def test_a_training_that_does_not_end_in_its_time_is_a_failed_trial(clone, first):
    settings = ("train.epochs=1000", "limits.train=0.0003")
    space = "tune.space={train.lr: {choices: [0.001, 0.002]}}"
    sets = [word for each in (*settings, space) for word in ("--set", each)]
    failed = clone.retrain("tune", "vit", *sets, code=1)
    assert failed.stdout.count("failed: train did not end within 0.0003 h") == 2
    assert "All 2 trials failed." in failed.stderr


LONG = (
    "--set",
    "train.epochs=30",
    "--set",
    "scale.checkpoint_seconds=0.1",
    "--set",
    "tune.space={train.lr: {low: 0.001, high: 0.01, log: true}}",
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
    assert {trial["state"] for trial in document["trials"]} == {"complete"}


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("{}", "tune.space: nothing to search."),
        ("{train.lrr: {choices: [1]}}", "train.lrr: no such key. Did you mean"),
        ("{train.lr: {low: 0, high: 0.1}}", "tune.space.train.lr: train.lr: should be greater"),
        ("{train.optimizer: {choices: [sdg]}}", "train.optimizer: should be"),
        ("{model.heads: {choices: [4, 5]}}", "model.heads: 5 does not divide"),
        ("{gate.margin: {choices: [0.1]}}", "tune.space.gate.margin: no training depends on it"),
        ("{train.best.mode: {choices: [max]}}", "tune.space.train.best.mode: trials are compared"),
        ("{train.arguments: {choices: [{a: 1}]}}", "train.arguments: the project's own"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_before_anything_runs(space, said):
    project, overrides = Project(ROOT), dict([parse_override(f"tune.space={space}")])
    workload = load_workload(project.params, "vit", overrides)
    assert any(said in fault for fault in tune.space_faults(workload, project))


def test_a_workload_with_time_limits_for_other_steps_can_be_searched():
    limits = {"limits": {"pull": 1.0, "evaluate": 1.0}}
    workload = load_workload(ROOT / "params.yaml", "vit", limits)
    tune.tune.check(workload, Project(ROOT))
    assert not [*tune.space_faults(workload, Project(ROOT))]


def closeness(values):
    return -abs(math.log10(values["train.lr"]) + 2)


def drawn(space, trials, ended=()):
    """The values of a search whose metric is a function of them; some trials have ended before."""
    workload = load_workload(ROOT / "params.yaml", "vit", {"tune.space": space})
    of = tune.space_of(workload)
    study = optuna.create_study(direction="maximize")
    study.add_trials(ended)
    while len(study.trials) < trials:
        values = tune.draw(workload, study, of)
        study.add_trial(
            optuna.trial.create_trial(params=values, distributions=of, value=closeness(values))
        )
    return study.trials


def test_the_same_values_are_drawn_whenever_a_search_was_ended():
    space = {"train.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
    trials = drawn(space, 20)
    again = drawn(space, 20, trials[:9])
    assert [trial.params for trial in again] == [trial.params for trial in trials]
    assert trials[0].params == {"train.lr": 0.003}  # the workload's own
    assert len({trial.params["train.lr"] for trial in trials}) == 20
    assert max(trial.value for trial in trials) > -0.1


def test_the_first_values_are_the_workloads_own_also_where_they_are_a_section():
    colors, jitter = "train.augment.color_jitter", {"brightness": 0.2}
    space = {colors: {"choices": [None, jitter]}, "train.seed": {"choices": [0, 1]}}
    overrides = {"tune.space": space, colors: jitter, "images.channels": 3}
    workload = load_workload(ROOT / "params.yaml", "vit", overrides)
    values = tune.draw(workload, optuna.create_study(), tune.space_of(workload))
    assert values == {colors: '{"brightness": 0.2}', "train.seed": "0"}
