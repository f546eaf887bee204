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
