import subprocess

import pytest

from retrain.params import parse_override, parse_yaml
from retrain.search.patch import as_yaml, patch

TEXT = """\
# Our workloads.
workloads:
  toy:   # the first
    data: {path: x}
    train:
      epochs: 3     # few
      lr: 1e-3
      # what is mirrored
      augment: {flip: true}
    model: {family: vit}   # small

    # of its own
    tune:
      trials: 3
  other:
    train:
      lr: 1e-3
"""


def apply(tmp_path, text, values, tool, entry="toy"):
    file = tmp_path / "params.yaml"
    file.write_text(text, encoding="utf-8", newline="")
    diff = patch(text, entry, values, "params.yaml")
    assert diff
    done = subprocess.run(tool, cwd=tmp_path, input=diff.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr
    return file.read_bytes().decode()


def test_only_the_lines_of_the_values_change(tmp_path):
    values = {"train.lr": 0.0021, "train.epochs": 7, "train.augment.flip": False}
    after = apply(tmp_path, TEXT, values, ["git", "apply", "-"])
    expected = TEXT.replace("epochs: 3  ", "epochs: 7  ").replace("flip: true", "flip: false")
    assert after == expected.replace("lr: 1e-3", "lr: 0.0021", 1)


@pytest.mark.parametrize("text", [TEXT, TEXT.rstrip("\n"), TEXT.partition("    tune:")[0]])
def test_what_is_not_there_is_added_in_its_place(tmp_path, text):
    values = {
        "train.weight_decay": 0.1,
        "train.augment.shift": 2,
        "train.plateau.patience": 4,
        "model.dropout": 0.1,
        "scale.workers": 2,
    }
    after = apply(tmp_path, text, values, ["git", "apply", "-"])
    toy = parse_yaml(after)["workloads"]["toy"]
    assert toy["train"] == {
        "epochs": 3, "lr": 1e-3, "augment": {"flip": True, "shift": 2}, "weight_decay": 0.1,
        "plateau": {"patience": 4},
    }  # fmt: skip
    assert toy["model"] == {"family": "vit", "dropout": 0.1}
    assert toy["scale"] == {"workers": 2}
    assert set(text.splitlines()) - set(after.splitlines()) == {
        "      augment: {flip: true}", "    model: {family: vit}   # small",
    }  # fmt: skip


def test_a_list_and_a_section_are_replaced_whole(tmp_path):
    text = (
        "workloads:\n  a:\n    model:\n      sizes:\n      - 1\n      - 2\n      # end\n    b: 1\n"
    )
    after = apply(tmp_path, text, {"model.sizes": [3, 4]}, ["git", "apply", "-"], "a")
    assert parse_yaml(after)["workloads"]["a"] == {"model": {"sizes": [3, 4]}, "b": 1}
    after = apply(tmp_path, text, {"model": {"n": None}}, ["git", "apply", "-"], "a")
    assert parse_yaml(after)["workloads"]["a"] == {"model": {"n": None}, "b": 1}


def test_the_plain_patch_program_takes_it_too(tmp_path):
    tool = ["patch", "-p1"]
    assert "lr: 0.5" in apply(tmp_path, TEXT, {"train.lr": 0.5}, tool)


def test_values_that_are_there_already_change_nothing():
    assert patch(TEXT, "toy", {"train.lr": 0.001, "train.augment.flip": True}, "params.yaml") == ""


@pytest.mark.parametrize(
    "text",
    [
        "workloads:\n  a: &a\n    train: {lr: 1}\n  b: *a\n",
        "workloads:\n  a:\n    train: &t\n      lr: 1\n  b:\n    train: *t\n",
    ],
)
def test_what_workloads_share_is_left_to_a_person(text):
    assert patch(text, "a", {"train.lr": 2}, "params.yaml") is None


def test_a_value_over_one_that_is_merged_from_elsewhere_is_added(tmp_path):
    text = "base: &t\n  lr: 1\nworkloads:\n  a:\n    train:\n      <<: *t\n      epochs: 1\n"
    after = apply(tmp_path, text, {"train.lr": 2}, ["git", "apply", "-"], "a")
    assert parse_yaml(after)["workloads"]["a"]["train"] == {"lr": 2, "epochs": 1}


def test_a_parameter_that_is_dropped_is_left_to_a_person():
    assert patch(TEXT, "toy", {"train.epochs": ""}, "params.yaml") is None


@pytest.mark.parametrize(
    "value",
    [1, 0.1, 1e-05, 3.4e12, True, None, "adamw", "no", "1e-3", "null", "a: b", " x", [1, 2.5]],
)  # fmt: skip
def test_a_value_is_written_as_it_is_read(value):
    name, again = parse_override(f"key={as_yaml(value)}")
    assert (name, again, type(again)) == ("key", value, type(value))
