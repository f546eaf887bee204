from pathlib import Path

import pytest

from retrain.errors import UsageError
from retrain.workload import load_workload, parse_override

SHIPPED = Path(__file__).parents[2] / "params.yaml"


def params(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    return path


def minimal(tmp_path: Path, more: str = "") -> Path:
    return params(
        tmp_path, f"workloads:\n  toy:\n    data: {{path: x}}\n    model: {{family: vit}}\n{more}"
    )


def test_defaults_fill_what_the_file_leaves_out(tmp_path):
    workload = load_workload(minimal(tmp_path), "toy")
    assert workload.train.batch_size == 64
    assert workload.flat()["data.split.val"] == 0.1


def test_a_number_in_scientific_notation_is_a_number(tmp_path):
    path = minimal(tmp_path, "    train: {lr: 1e-3}\n")
    assert load_workload(path, "toy").train.lr == 0.001
    assert parse_override("train.lr=1e-4") == ("train.lr", 0.0001)


def test_overrides_replace_values_and_reach_nested_sections(tmp_path):
    overrides = {"train.lr": 0.5, "train.augment.flip": True}
    workload = load_workload(minimal(tmp_path), "toy", overrides)
    assert workload.train.lr == 0.5
    assert workload.train.augment.flip


def test_a_workload_is_frozen(tmp_path):
    workload = load_workload(minimal(tmp_path), "toy")
    with pytest.raises(ValueError, match="frozen"):
        workload.train.lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.learning_rate": 1.0}, "train.learning_rate: no such key."),
        ({"train.epoch": 3}, "Did you mean 'epochs'?"),
        ({"train.epochs": "many"}, "train.epochs: should be a valid integer, is 'many'"),
        ({"train.epochs": 1.5}, "train.epochs"),
        ({"train.lr": -1}, "train.lr: should be greater than 0, is -1"),
        ({"train.schedule": "linear"}, "'cosine' or 'one_cycle'"),
        ({"model.family": "vitt"}, "model.family: no 'vitt' in models/. Did you mean 'vit'?"),
        ({"model.family": "network"}, "model.family: no 'network' in models/. There are: vit."),
        ({"scale.threads": 0}, "scale.threads"),
        (
            {"model.pretrained": "x/y", "model.heads": 3},
            "workload toy: model.pretrained brings its own sizes: leave out heads.",
        ),
        ({"model.hidden_size": 10}, "model.heads 6 does not divide hidden_size 10."),
        ({"model.hidden": 3}, "model.hidden: no such key. Did you mean 'hidden_size'?"),
        ({"model.hidden_size": "big"}, "model.hidden_size: should be a valid integer"),
        ({"train.lr.peak": 1}, "lr is a value"),
        ({"optimizer.name": "sgd"}, "optimizer: no such key"),
        ({"images.size": 100_000}, "images.size: should be less than or equal to 4096"),
        ({"train.epochs": 10**9}, "train.epochs: should be less than or equal to 100000"),
        ({"train.batch_size": 1 << 21}, "train.batch_size: should be less than or equal to"),
        ({"train.lr": float("inf")}, "train.lr: should be a finite number"),
        ({"model.layers": 5000}, "model.layers: should be less than or equal to 1000"),
        ({"model.hidden_size": 1 << 20}, "model.hidden_size: should be less than or equal to"),
        ({"limits.train": 0}, "limits.train: should be greater than 0"),
        ({"data.path": "."}, "data.path: names no data"),
        ({"data.path": ""}, "data.path: names no data"),
        ({"data.split": {"val": 0.5, "test": 0.5}}, "data.split: val and test together leave"),
        ({"checks.min_side": 9, "checks.max_side": 8}, "checks.min_side is larger than"),
        ({"train.augment.shift": 224}, "train.augment.shift 224 must be smaller than images.size"),
        ({"scale.workers": 3}, "train.batch_size 64 cannot be divided among scale.workers 3"),
        ({"scale.workers": 2, "train.micro_batch": 33}, "more than a worker's part"),
        ({"model.patch_size": 15}, "model.patch_size 15 does not divide images.size 224"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_place(tmp_path, overrides, message):
    path = minimal(tmp_path, "    train: {lr: 1e-3}\n")
    with pytest.raises(UsageError) as error:
        load_workload(path, "toy", overrides)
    assert message in str(error.value)


def test_all_that_does_not_go_together_is_reported_at_once(tmp_path):
    with pytest.raises(UsageError, match=r"(?s)scale\.workers 3: .*\nmodel\.patch_size 15"):
        load_workload(minimal(tmp_path), "toy", {"scale.workers": 3, "model.patch_size": 15})


@pytest.mark.parametrize("name", ["a/b", "..", "-v", ".hidden", "two words", "é", "a:b", "x" * 101])
def test_a_name_that_something_would_refuse_later_is_refused(tmp_path, name):
    text = f"workloads: {{'{name}': {{data: {{path: x}}, model: {{family: vit}}}}}}"
    with pytest.raises(UsageError, match="ASCII letters"):
        load_workload(params(tmp_path, text), name)


def test_an_unknown_workload_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match=r"No workload 'tyo' .* Did you mean 'toy'"):
        load_workload(minimal(tmp_path), "tyo")


def test_a_workload_without_data_is_refused(tmp_path):
    path = params(tmp_path, "workloads: {toy: {model: {family: vit}}}")
    with pytest.raises(UsageError, match="data: missing"):
        load_workload(path, "toy")


@pytest.mark.parametrize("text", ["", "workloads: 3", "workloads: {a: 3}", "a: [", "- 1"])
def test_a_file_that_is_no_params_file_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match=r"params\.yaml"):
        load_workload(params(tmp_path, text), "toy")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No file"):
        load_workload(tmp_path / "params.yaml", "toy")


@pytest.mark.parametrize("text", ["train.lr", "=3", "train.lr=[1"])
def test_an_override_that_is_no_assignment_is_refused(text):
    with pytest.raises(UsageError, match="--set"):
        parse_override(text)


def test_shipped_workloads_list_every_section_that_dvc_reads():
    # DVC refuses a stage whose parameters are not in the file, even where there are defaults.
    from ruamel.yaml import YAML

    sections = {"data", "checks", "images", "model", "train", "scale", "evaluate", "gate"}
    for name, tree in YAML(typ="safe", pure=True).load(SHIPPED.read_text())["workloads"].items():
        load_workload(SHIPPED, name)
        assert sections <= set(tree), name
        assert "workers" in tree["scale"], name


def test_another_name_is_not_that_of_an_entry_and_is_a_valid_one(tmp_path):
    path = minimal(tmp_path)
    assert load_workload(path, "toy", as_name="photos").name == "photos"
    with pytest.raises(UsageError, match=r"--as toy: params\.yaml has a workload of that name"):
        load_workload(path, "toy", as_name="toy")
    with pytest.raises(UsageError, match="ASCII letters"):
        load_workload(path, "toy", as_name="../photos")


def test_the_classes_that_a_model_may_drop_are_a_list_of_names(tmp_path):
    path = minimal(tmp_path)
    assert load_workload(path, "toy").gate.may_drop == ()
    dropped = load_workload(path, "toy", {"gate.may_drop": ["ant", "bee"]}).gate.may_drop
    assert dropped == ("ant", "bee")
    with pytest.raises(UsageError, match=r"gate\.may_drop"):
        load_workload(path, "toy", {"gate.may_drop": "ant"})
