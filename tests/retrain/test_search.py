import math
from pathlib import Path

import pytest

from retrain.outputs import Plan
from retrain.params import load_workload
from retrain.search import (
    COMPLETE,
    FAILED,
    JOURNAL,
    PRUNED,
    Ending,
    Search,
    search_key,
    space_of,
    storage_in,
)

SHIPPED = Path(__file__).parents[2] / "params.yaml"
LR = {"low": 1e-4, "high": 1e-1, "log": True}
TWO = {"train.lr": LR, "train.weight_decay": {"low": 0.0, "high": 0.2}}
METRIC = "val_accuracy"


def workload(space, **overrides):
    return load_workload(SHIPPED, "vit", {"tune.space": space} | overrides)


def search_of(folder, space, seed=0, maximize=True, trials=9):
    """A search, which goes on with its journal."""
    folder.mkdir(exist_ok=True)
    (folder / JOURNAL).touch()
    space_, storage = space_of(workload(space)), storage_in(folder)
    search = Search(storage, space_, seed, METRIC, maximize, trials)
    search.begin(workload(space).flat())
    return search


def end(search, trial, reached, state=COMPLETE, reason=None):
    best = {"epoch": 1, METRIC: reached[-1]} if reached else None
    search.tell(trial, Ending(state, best, reached, reason, False, 1.0))


def tried(folder, space, count, value, **options):
    """The values of the trials of a search whose metric is a function of the values."""
    search = search_of(folder, space, trials=count, **options)
    while len(search.rows()) < count:
        trial, values = search.next()
        end(search, trial, [value(values)])
    return [row["values"] for row in search.rows()]


def closeness(values):
    return -abs(math.log10(values["train.lr"]) + 2)


@pytest.mark.parametrize(
    ("searched", "message"),
    [
        ({"low": 0.1}, "needs low and high"),
        ({"low": 1, "high": 2, "choices": [1]}, "has choices"),
        ({"low": 0.1, "high": 0.01}, "`low <= high` must hold"),
        ({"low": 0.0, "high": 0.1, "log": True}, "`low > 0` must hold for `log=True`"),
        ({"low": 0.1, "high": 0.2, "step": 0.1, "log": True}, "not supported when `log` is true"),
        ({"low": 0.1, "high": 0.2, "step": 0.0}, "`step > 0` must hold"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_with_its_place(searched, message):
    with pytest.raises(ValueError, match=r"tune\.space\.train\.lr: ") as error:
        space_of(workload({"train.lr": searched}))
    assert message in str(error.value)


def test_values_are_of_the_parameter_s_kind_and_of_the_range(tmp_path):
    space = {
        "train.lr": LR,
        "train.weight_decay": {"low": 0, "high": 1},  # a real number, though the ends are whole
        "train.warmup": {"low": 0.0, "high": 0.3, "step": 0.1},
        "train.augment.shift": {"low": 0, "high": 6, "step": 2},  # not the workload's 1
        "train.batch_size": {"low": 16, "high": 256, "log": True},
        "train.optimizer": {"choices": ["adamw", "sgd"]},
        "train.early_stopping": {"choices": [None, {"patience": 4}]},
    }
    found = tried(tmp_path, space, 30, lambda values: 0.5)[1:]
    lrs = [values["train.lr"] for values in found]
    assert all(1e-4 <= lr <= 1e-1 and float(f"{lr:.5g}") == lr for lr in lrs)
    assert sum(lr < 1e-3 for lr in lrs) >= 2  # as likely as any power of ten
    assert len({values["train.weight_decay"] for values in found}) > 20
    assert {0.0, 0.1} < {values["train.warmup"] for values in found} <= {0.0, 0.1, 0.2, 0.3}
    assert {0, 2} < {values["train.augment.shift"] for values in found} <= {0, 2, 4, 6}
    assert all(type(values["train.batch_size"]) is int for values in found)
    assert {values["train.optimizer"] for values in found} == {"adamw", "sgd"}
    stopping = [values["train.early_stopping"] for values in found]
    assert all(each in stopping for each in (None, {"patience": 4}))


def test_the_first_trial_has_the_workload_s_own_values_if_they_are_in_the_space(tmp_path):
    space = {"train.lr": LR, "train.batch_size": {"choices": [32, 64]}}
    own = {"train.lr": 0.003, "train.batch_size": 64}
    assert tried(tmp_path / "in", space, 1, closeness) == [dict(sorted(own.items()))]
    other = {"train.lr": {"low": 0.01, "high": 0.1}}
    [values] = tried(tmp_path / "out", other, 1, closeness)
    assert 0.01 <= values["train.lr"] <= 0.1


def test_a_killed_search_goes_on_with_the_same_trials_and_the_seed_counts(tmp_path):
    whole = tried(tmp_path / "whole", TWO, 16, closeness)
    tried(tmp_path / "killed", TWO, 12, closeness)
    left, _ = search_of(tmp_path / "killed", TWO).next()  # its process ends here
    again = search_of(tmp_path / "killed", TWO)
    trial, values = again.next()
    assert (trial.number, trial.params) == (left.number, left.params)
    end(again, trial, [closeness(values)])
    assert tried(tmp_path / "killed", TWO, 16, closeness) == whole
    assert tried(tmp_path / "seed", TWO, 3, closeness, seed=1)[1:] != whole[1:3]


def test_trials_side_by_side_are_different_ones(tmp_path):
    search = search_of(tmp_path, TWO)
    trials = [search.next(is_beside=number > 0)[0] for number in range(3)]
    assert [trial.number for trial in trials] == [0, 1, 2]
    assert len({tuple(trial.params.values()) for trial in trials}) == 3
    end(search, trials[0], [0.5])
    left, _ = search_of(tmp_path, TWO).next()  # of a process that was killed
    assert (left.number, left.params) == (1, trials[1].params)


def test_all_of_a_small_space_is_tried_whatever_was_left(tmp_path):
    space = {"train.lr": {"choices": [0.001, 0.002]}, "train.augment.shift": {"low": 0, "high": 1}}
    search = search_of(tmp_path, space)
    assert search.wanted == 4
    first, _ = search.next()  # its process ends here
    again = search_of(tmp_path, space)
    found = []
    for _ in range(4):
        trial, values = again.next()
        end(again, trial, [0.5])
        found.append(tuple(values.values()))
    assert len(set(found)) == 4
    assert again.rows()[0]["trial"] == first.number


def test_nothing_is_pruned_before_three_are_complete_and_then_the_worse_half_is(tmp_path):
    search = search_of(tmp_path, TWO)
    assert search.bounds() == {}
    for last in (0.8, 0.4, 0.16):
        assert search.bounds() == {}
        end(search, search.next()[0], [last * n / 8 for n in range(1, 9)])
    end(search, search.next()[0], [], FAILED, "diverged")
    assert search.bounds() == pytest.approx({2: 0.1, 4: 0.2})  # as good as the second of three
    end(search, search.next()[0], [0.01, 0.02], PRUNED)
    end(search, search.next()[0], [0.03, 0.06, 0.09, 0.12], PRUNED)
    assert search.bounds() == pytest.approx({2: 0.06, 4: 0.2})  # the third of five, second of four
    states = [row["state"] for row in search_of(tmp_path, TWO).rows()]
    assert states == [COMPLETE] * 3 + [FAILED] + [PRUNED] * 2


def key(data="images", code="code", **overrides):
    varied = load_workload(SHIPPED, "vit", overrides)
    config = {name: value for name, value in varied.flat().items() if name.startswith("train.")}
    plan = Plan("train", config, {"preprocess": data}, {"loop": code}, {"torch": "1"})
    return search_key(plan, varied.tune)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ({"train.lr": 0.007, "train.augment.shift": 2, "tune.trials": 99}, True),
        ({"gate.margin": 0.01, "tune.parallel": 4}, True),
        ({"data": "other images"}, False),
        ({"code": "another loop"}, False),
        ({"train.epochs": 3}, False),
        ({"tune.seed": 1}, False),
        ({"tune.space": {"train.lr": {"low": 0.0003, "high": 0.04, "log": True}}}, False),
    ],
    ids=str,
)
def test_what_makes_another_search(other, is_same):
    assert (key(**other) == key()) == is_same
