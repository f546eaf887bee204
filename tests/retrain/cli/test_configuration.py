"""What `retrain params` shows of a workload: values, and where they were set."""

import json

import pytest

from retrain.cli.main import main

PARAMS = """\
workloads:
  common:
    train: &common
      epochs: 7
      lr: 0.01
  toy:
    data: {path: data/toy}
    model: {family: vit}
    train:
      <<: *common
      lr: 0.02
    gate:
      min:
        accuracy: 0.5
  ours:
    data: {path: data/x}
    model:
      family: custom
      factory: a:b
"""


@pytest.fixture(autouse=True)
def clone(tmp_path, monkeypatch):
    (tmp_path / "params.yaml").write_text(PARAMS)
    monkeypatch.chdir(tmp_path)


def settings(capsys, *arguments):
    assert main(["params", *arguments, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    return {one["name"]: (one["value"], one["set_in"]) for one in listed}


def test_a_value_is_shown_with_the_line_that_set_it(capsys):
    found = settings(capsys, "toy")
    assert found["train.lr"] == (0.02, "params.yaml:11")
    assert found["train.epochs"] == (7, "params.yaml:4")  # by the merge of YAML
    assert found["train.batch_size"] == (64, None)
    assert found["gate.min"] == ({"accuracy": 0.5}, "params.yaml:13")
    assert found["data.path"] == ("data/toy", "params.yaml:7")
    assert "train.lora" in found
    assert not {"train.lora.r", "model.factory"} & found.keys()
    ours = settings(capsys, "ours", "model.")
    assert ours["model.factory"] == ("a:b", "params.yaml:19")
    assert "model.hidden_size" not in ours


def test_a_person_reads_value_default_and_meaning(capsys):
    assert main(["params", "toy", "train.lr"]) == 0
    line, meaning = capsys.readouterr().out.splitlines()[:2]
    assert line == "train.lr = 0.02   (params.yaml:11; default: 0.001)"
    assert meaning == "    The peak learning rate."
    assert main(["params", "train.lora.r"]) == 0
    assert capsys.readouterr().out.startswith("train.lora.r: whole number >= 1 <= 4096;")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy", "train.lrr"], "Did you mean 'train.lr'?"),
        (["tyo"], "Did you mean 'toy'?"),
        (["tyo", "train.lr"], "No workload 'tyo'. Did you mean 'toy'?"),
    ],
)
def test_a_wrong_name_gets_the_closest_one(capsys, arguments, message):
    assert main(["params", *arguments]) == 2
    assert message in capsys.readouterr().err
