import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from retrain.params import load_workload
from retrain.search.trials import COMPLETE, FAILED, PRUNED, Trial, Trials, bounds, search_key
from retrain.step import Plan

SHIPPED = Path(__file__).parents[3] / "params.yaml"


def key(data="images", code="code", **overrides):
    workload = load_workload(SHIPPED, "vit", overrides)
    config = {name: value for name, value in workload.flat().items() if name.startswith("train.")}
    plan = Plan("train", config, {"preprocess": data}, {"loop": code}, {"torch": "1"})
    return search_key(plan, workload.tune)


def test_a_search_is_the_same_whatever_the_values_that_it_searches_and_how_many_trials():
    assert key() == key(**{"train.lr": 0.007, "train.augment.shift": 2, "tune.trials": 99})
    assert key() == key(**{"gate.margin": 0.01})


@pytest.mark.parametrize(
    "other",
    [
        {"data": "other images"},
        {"code": "another loop"},
        {"train.epochs": 3},
        {"tune.seed": 1},
        {"tune.space": {"train.lr": {"low": 0.0003, "high": 0.04, "log": True}}},
    ],
    ids=str,
)
def test_other_data_parameters_spaces_and_seeds_are_other_searches(other):
    assert key(**other) != key()


def test_trials_are_kept_and_the_one_that_was_killed_is_found(tmp_path):
    trials = Trials(tmp_path / "trials")
    assert trials.all() == []
    done = Trial(1, {"train.lr": 0.1}, COMPLETE, {"epoch": 2, "val_accuracy": 0.5}, [0.4, 0.5])
    left = Trial(2, {"train.lr": 0.2})
    for each in (left, done):
        trials.write(each)
    assert trials.all() == [done, left]
    assert trials.over() == [done]
    never = Trial(2, {"train.lr": 0.2}, PRUNED, None, [float("-inf")])
    trials.write(never)
    assert trials.over() == [done, never]
    trials.forget()
    assert trials.all() == []


def curve(number, last, state=COMPLETE, epochs=8):
    """A trial that gets better by as much in each epoch."""
    return Trial(number, {}, state, reached=[last * n / 8 for n in range(1, epochs + 1)])


def test_nothing_is_pruned_before_some_trials_are_complete():
    assert bounds([]) == {}
    failed = [Trial(number, {}, FAILED) for number in (3, 4, 5)]
    assert bounds([curve(1, 0.9), curve(2, 0.9), *failed]) == {}


def test_the_better_half_goes_on_at_a_quarter_and_at_half():
    three = [curve(1, 0.8), curve(2, 0.4), curve(3, 0.16)]
    assert bounds(three) == pytest.approx({2: 0.1, 4: 0.2})  # as good as the second of three
    five = [*three, curve(4, 0.08, PRUNED, epochs=2), curve(5, 0.24, PRUNED, epochs=4)]
    assert bounds(five) == pytest.approx({2: 0.06, 4: 0.2})  # the third of five, second of four
    assert bounds(five) == bounds(five[::-1])


def take(trials, wanted, *, finish=True):
    """Takes a trial and ends it, as a run does; returns its number."""
    with trials.next(wanted, lambda known: {"n": len(known)}) as trial:
        if trial and finish:
            trials.write(replace(trial, state=COMPLETE, reached=[0.5]))
        return trial and trial.number


def test_trials_are_taken_in_order_until_all_are_over_and_more_can_follow(tmp_path):
    trials = Trials(tmp_path / "trials")
    assert [take(trials, 2) for _ in range(3)] == [1, 2, None]
    assert [take(trials, 3) for _ in range(2)] == [3, None]
    assert take(trials, 1) is None
    assert [trial.values for trial in trials.over()] == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_a_trial_that_was_killed_is_taken_first_unless_enough_are_over(tmp_path):
    trials = Trials(tmp_path / "trials")
    assert take(trials, 9) == 1
    assert take(trials, 9, finish=False) == 2  # its process is gone
    assert take(trials, 1) is None
    assert [take(trials, 3) for _ in range(3)] == [2, 3, None]


# Takes trials, each of which takes a while; is killed in its second one if it is told so.
WORKER = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from retrain.search.trials import COMPLETE, Trials

trials = Trials(Path(sys.argv[1]))
taken = []
while True:
    with trials.next(8, lambda known: {"n": len(known)}) as trial:
        if trial is None:
            break
        taken.append(trial.number)
        time.sleep(0.2)
        if len(taken) == 2 and sys.argv[2] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        trials.write(replace(trial, state=COMPLETE))
print(*taken)
"""


def test_several_processes_share_the_trials_and_what_a_killed_one_had(tmp_path):
    folder = tmp_path / "trials"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder), end],
            cwd=SHIPPED.parent,
            stdout=-1,
            text=True,
        )
        for end in ("killed", "whole", "whole")
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 0, 0]
    trials = Trials(folder)
    assert [trial.number for trial in trials.over()] == list(range(1, 9))
    taken = [int(number) for output in outputs for number in output.split()]
    assert len(taken) == len(set(taken)) == 7  # the killed one had ended one, and left another
    assert [trial.values["n"] for trial in trials.all()] == list(range(8))
