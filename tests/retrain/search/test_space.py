import math
from pathlib import Path

import pytest

from retrain.errors import UsageError
from retrain.params import load_workload
from retrain.search.space import corners, parameters, size, suggest
from retrain.search.trials import COMPLETE, FAILED, PRUNED, Trial

SHIPPED = Path(__file__).parents[3] / "params.yaml"
LR = {"low": 1e-4, "high": 1e-1, "log": True}


def workload(space, **overrides):
    return load_workload(SHIPPED, "vit", {"tune.space": space} | overrides)


def space_of(space, **overrides):
    return parameters(workload(space, **overrides))


def search(space, count, value, seed=0, before=()):
    """The trials of a search whose metric is a function of the values."""
    trials = list(before)
    while len(trials) < count:
        values = suggest(space, trials, seed)
        trials.append(Trial(len(trials) + 1, values, COMPLETE, reached=[value(values)]))
    return trials


@pytest.mark.parametrize(
    ("searched", "said"),
    [
        ({"low": 0.1, "high": 0.01}, "low 0.1 is larger than high 0.01."),
        ({"low": 0.0, "high": 0.1, "log": True}, "low 0.0 has no logarithm"),
        ({"low": 0.1}, "needs low and high, or choices."),
        ({}, "needs low and high, or choices."),
        ({"low": 1, "high": 2, "choices": [1]}, "has choices or a range, not both."),
        ({"low": 0.1, "high": 0.2, "step": 0.1, "log": True}, "has step or log, not both."),
        ({"low": 0.1, "high": 0.2, "step": 0.0}, "step 0.0 should be larger than 0."),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_with_its_place(searched, said):
    with pytest.raises(UsageError) as error:
        workload({"train.lr": searched})
    assert f"tune.space.train.lr: {said}" in str(error.value)


def test_an_unknown_key_and_a_wrong_type_are_refused():
    said = r"tune\.space\.train\.lr\.lo: no such key\. Did you mean 'low'"
    with pytest.raises(UsageError, match=said):
        workload({"train.lr": {"lo": 1}})
    with pytest.raises(UsageError, match=r"tune\.trials: should be greater than or equal to 1"):
        load_workload(SHIPPED, "vit", {"tune.trials": 0})


def test_values_are_of_the_parameter_s_kind_and_of_the_range():
    space = space_of({
        "train.lr": LR,
        "train.weight_decay": {"low": 0, "high": 1},  # a real number, though the ends are whole
        "train.warmup": {"low": 0.0, "high": 0.3, "step": 0.1},
        "train.augment.shift": {"low": 0, "high": 6, "step": 2},
        "train.batch_size": {"low": 16, "high": 256, "log": True},
        "train.optimizer": {"choices": ["adamw", "sgd"]},
        "train.lora": {"choices": [None, {"r": 4}]},
    })  # fmt: skip
    found = [trial.values for trial in search(space, 40, lambda values: values["train.lr"])[1:]]
    lrs = [values["train.lr"] for values in found]
    assert all(1e-4 <= lr <= 1e-1 and float(f"{lr:.3g}") == lr for lr in lrs)
    assert sum(lr < 1e-3 for lr in lrs[:9]) >= 1  # as many of each power of ten
    assert len({values["train.weight_decay"] for values in found}) > 20
    assert {0.0, 0.1} < {values["train.warmup"] for values in found} <= {0.0, 0.1, 0.2, 0.3}
    assert {0, 2} < {values["train.augment.shift"] for values in found} <= {0, 2, 4, 6}
    assert all(type(values["train.batch_size"]) is int for values in found)
    assert {values["train.optimizer"] for values in found} == {"adamw", "sgd"}
    assert all(each in [values["train.lora"] for values in found] for each in (None, {"r": 4}))


def test_the_first_trial_has_the_workload_s_own_values_if_they_are_in_the_space():
    space = {"train.lr": LR, "train.batch_size": {"choices": [32, 64]}}
    assert suggest(space_of(space), [], 0) == {"train.lr": 0.003, "train.batch_size": 64}
    other = {"train.lr": {"low": 0.01, "high": 0.1}}
    assert 0.01 <= suggest(space_of(other), [], 0)["train.lr"] <= 0.1
    stepped = {"train.augment.shift": {"low": 0, "high": 2, "step": 2}}
    assert suggest(space_of(stepped), [], 0)["train.augment.shift"] in (0, 2)


def test_a_search_goes_on_as_if_it_had_not_been_ended_and_the_seed_counts():
    space = space_of({"train.lr": LR, "train.weight_decay": {"low": 0.0, "high": 0.2}})

    def value(values):
        return -abs(math.log10(values["train.lr"]) + 2)

    whole = search(space, 16, value)
    assert search(space, 16, value, before=search(space, 7, value)) == whole
    assert search(space, 16, value) == whole
    assert search(space, 4, value, seed=1)[1:] != whole[1:4]


def test_the_search_comes_closer_to_the_best_values():
    space = space_of({"train.lr": LR})
    found = search(space, 40, lambda values: -abs(math.log10(values["train.lr"]) + 2))
    late = [abs(math.log10(trial.values["train.lr"]) + 2) for trial in found[25:]]
    assert sorted(late)[len(late) // 2] < 0.45  # where random ones have 0.75


def test_values_that_failed_are_avoided():
    space, trials = space_of({"train.lr": LR}), []
    while len(trials) < 30:
        values = suggest(space, trials, 0)
        failed = values["train.lr"] > 1e-3
        state = FAILED if failed else PRUNED if len(trials) % 3 == 2 else COMPLETE
        reached = [] if failed else [0.5]
        trials.append(Trial(len(trials) + 1, values, state, reached=reached))
    early, late = (
        sum(trial.state == FAILED for trial in part) for part in (trials[1:10], trials[20:])
    )
    assert late < early


def test_no_values_are_tried_twice_and_a_small_space_is_tried_whole():
    space = space_of({
        "train.batch_size": {"choices": [32, 64]},
        "train.augment.shift": {"low": 0, "high": 2},
    })  # fmt: skip
    assert size(space) == 6
    trials = search(space, 6, lambda values: values["train.batch_size"])
    assert len({tuple(trial.values.items()) for trial in trials}) == 6
    assert size(space_of({"train.lr": LR})) == math.inf


def test_every_end_is_checked_alone_and_then_together():
    space = space_of({"train.lr": LR, "train.batch_size": {"choices": [1, 2, 3]}})
    found = list(corners(space))
    assert found[:3] == [{"train.batch_size": 1}, {"train.batch_size": 2}, {"train.batch_size": 3}]
    assert {"train.batch_size": 3, "train.lr": 1e-4} in found
    assert len(found) == 3 + 2 + 6


def test_a_narrow_range_keeps_as_many_digits_as_it_needs():
    space = space_of({"train.momentum": {"low": 0.9990, "high": 0.9999}})
    values = {trial.values["train.momentum"] for trial in search(space, 20, lambda values: 0.0)}
    assert len(values) == 20
    narrow = space_of({"train.lr": {"low": 1.0, "high": 1.001, "log": True}})
    assert len({t.values["train.lr"] for t in search(narrow, 20, lambda values: 0.0)}) == 20
