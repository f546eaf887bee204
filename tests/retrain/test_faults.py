import pytest

from retrain.errors import UsageError
from retrain.faults import validate
from retrain.workload import Data, Workload

LEAST = {"name": "toy", "data": {"path": "x"}, "model": {"family": "vit"}}


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("train", {"learning_rate": 1.0}, "train.learning_rate: no such key."),
        ("train", {"epoch": 3}, "train.epoch: no such key. Did you mean 'train.epochs'?"),
        ("optimizer", {"name": "sgd"}, "optimizer: no such key"),
        ("train", {"epochs": "many"}, "train.epochs: should be a valid integer, is 'many'"),
        ("train", {"epochs": 1.5}, "train.epochs: should be a valid integer, is 1.5"),
        ("train", {"lr": -1}, "train.lr: should be greater than 0, is -1"),
        ("train", {"schedule": "linear"}, "'cosine', 'one_cycle', 'plateau' or 'constant'"),
        (
            "scale",
            {"threads": 0},
            "scale.threads: should be 'auto' or should be greater than or equal to 1, is 0.",
        ),
        ("scale", {"threads": 10**6}, "scale.threads: should be 'auto' or should be less than"),
        ("images", {"size": 100_000}, "images.size: should be less than or equal to 4096"),
        ("train", {"epochs": 10**9}, "train.epochs: should be less than or equal to 100000"),
        ("train", {"batch_size": 1 << 21}, "train.batch_size: should be less than or equal to"),
        ("train", {"lr": float("inf")}, "train.lr: should be a finite number"),
        ("checks", {"max_side": 10**6}, "checks.max_side: should be less than or equal to 65535"),
        ("evaluate", {"batch_size": 1 << 20}, "evaluate.batch_size: should be less than or equal"),
        ("scale", {"max_failures": 10**6}, "scale.max_failures: should be less than or equal to"),
        ("limits", {"train": 0}, "limits.train: should be greater than 0"),
        ("data", {}, "data.path: missing."),
        ("data", {"path": "a\0b"}, "data.path: should be text without control characters"),
        (
            "data",
            {"path": "x" * 10**6},
            "data.path: should have at most 4096 characters, is 'xxx",
        ),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_place(section, values, message):
    with pytest.raises(UsageError) as error:
        validate(Workload, LEAST | {section: values}, "toy")
    assert str(error.value).startswith("workload toy: ")
    assert message in str(error.value)


def test_all_faults_are_told_a_line_for_each_place():
    values = {"train": {"lr": -1, "epoch": 3}, "scale": {"workers": "two"}}
    with pytest.raises(UsageError) as error:
        validate(Workload, LEAST | values, "toy")
    assert [line.split(": ")[-2] for line in str(error.value).splitlines()] == [
        *("train.lr", "train.epoch", "scale.workers")
    ]


def test_the_place_of_a_fault_begins_with_the_sections_above():
    with pytest.raises(UsageError, match=r"^workload toy: data\.split\.tset: no such key"):
        validate(Data, {"path": "x", "split": {"tset": 0.1}}, "toy", ("data",))
