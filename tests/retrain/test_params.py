import json
from pathlib import Path

import pytest

from flows.predict import check_input
from retrain.errors import UsageError, has_login, without_login
from retrain.params import (
    as_yaml,
    load_section,
    load_workload,
    parse_override,
    resolve,
    vary,
    workload_names,
)
from retrain.project import Project
from retrain.workload import Drift, Gate

SHIPPED = Path(__file__).parents[2] / "params.yaml"
EXAMPLES = sorted(SHIPPED.parent.glob("examples/*.yaml"))


LEAST = "workloads:\n  toy:\n    data: {path: x}\n    model: {family: vit}\n"
SIZES = "{family: vit, patch_size: 4, hidden_size: 64, layers: 2, heads: 4}"
SIZED = LEAST.replace("{family: vit}", SIZES)


def write(folder: Path, text: str) -> Path:
    """Writes a file of parameters; gives its path."""
    path = folder / "params.yaml"
    path.write_text(text)
    return path


def test_overrides_replace_values_and_drop_them_to_their_defaults(tmp_path):
    path = write(tmp_path, SIZED + "    train: {lr: 0.5, micro_batch: 8, epochs: 3}\n")
    given = ("train.weight_decay=1e-4", "train.augment.flip=true", "train.lr=", "train.epochs=4")
    overrides = dict(map(parse_override, (*given, "train.micro_batch=null")))
    train = load_workload(path, "toy", json.loads(json.dumps(overrides))).train
    assert (train.weight_decay, train.augment.flip) == (1e-4, True)
    assert (train.lr, train.micro_batch, train.epochs) == (1e-3, None, 4)
    other = vary(load_workload(path, "toy", overrides), {"train.lr": 0.25}).train
    assert (other.lr, other.weight_decay, other.epochs) == (0.25, 1e-4, 4)
    assert load_workload(path, "toy", {"train": ""}).train.epochs == 20
    assert load_workload(path, "toy", {"train.weight_decay": ""}).train.lr == 0.5  # was not there


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train.epochs": "many"}, "train.epochs: should be a valid integer, is 'many'"),
        ({"model.family": "vitt"}, "model.family: no 'vitt' in models/. Did you mean 'vit'?"),
        (
            {"model.family": "network"},
            "no 'network' in models/. There are: auto, custom, embedding_head, vit.",
        ),
        (
            {"model.pretrained": "x/y", "model.heads": 3},
            "workload toy: model.pretrained: brings its own sizes: leave out heads (--set "
            "model.heads=).",
        ),
        ({"model.hidden_size": 10}, "model.heads: 6 does not divide hidden_size 10."),
        ({"model.hidden": 3}, "model.hidden: no such key. Did you mean 'model.hidden_size'?"),
        ({"model.hidden_size": "big"}, "model.hidden_size: should be a valid integer"),
        ({"train.lr.peak": 1}, "lr is a value"),
        ({"optimizer.name": "sgd"}, "optimizer: no such key"),
        ({"model.layers": 5000}, "model.layers: should be less than or equal to 1000"),
        ({"model.hidden_size": 1 << 20}, "model.hidden_size: should be less than or equal to"),
        ({"model.initializer_range": 1e300}, "model.initializer_range: should be less than"),
        ({"model.pretrained_version": "a" * 40}, "model.pretrained_version: is of no use without"),
        (
            {"train.plateau": {"patience": 4, "facotr": 0.1}},
            "train.plateau.facotr: no such key. Did you mean 'train.plateau.factor",
        ),
        ({"data": ""}, "data: missing."),
        (
            {"scale.workers": 3, "train.batch_size": 2, "model.patch_size": 15},
            "is less than an image for each of 3 workers.\nmodel.patch_size: 15",
        ),
        ({"name": "../x"}, "name: no such key; its key in params.yaml names it."),
        ({"model.patch_size": 15}, "model.patch_size: 15 does not divide images.size 224"),
        ({"train": {"learning_rate": 1.0}}, "train.learning_rate: no such key."),
        ({"train": {"epoch": 3}}, "train.epoch: no such key. Did you mean 'train.epochs'?"),
        ({"optimizer": {"name": "sgd"}}, "optimizer: no such key"),
        ({"train": {"epochs": "many"}}, "train.epochs: should be a valid integer, is 'many'"),
        ({"train": {"epochs": 1.5}}, "train.epochs: should be a valid integer, is 1.5"),
        ({"train": {"lr": -1}}, "train.lr: should be greater than 0, is -1"),
        ({"train": {"schedule": "linear"}}, "'cosine', 'one_cycle', 'plateau' or 'constant'"),
        (
            {"scale": {"threads": 0}},
            "should be 'auto' or should be greater than or equal to 1, is 0.",
        ),
        ({"scale": {"threads": 1000000}}, "scale.threads: should be 'auto' or should be less than"),
        ({"images": {"size": 100000}}, "images.size: should be less than or equal to 4096"),
        ({"train": {"epochs": 1000000000}}, "train.epochs: should be less than or equal to 100000"),
        ({"train": {"batch_size": 2097152}}, "train.batch_size: should be less than or equal to"),
        ({"train": {"lr": float("inf")}}, "train.lr: should be a finite number"),
        (
            {"checks": {"max_side": 1000000}},
            "checks.max_side: should be less than or",
        ),
        (
            {"evaluate": {"batch_size": 1048576}},
            "evaluate.batch_size: should be less than or equal",
        ),
        (
            {"scale": {"max_failures": 1000000}},
            "scale.max_failures: should be less than or equal to",
        ),
        ({"limits": {"train": 0}}, "limits.train: should be greater than 0"),
        ({"data": {}}, "data.path: missing."),
        ({"data": {"path": "a\x00b"}}, "data.path: should be text without control characters"),
        (
            {"data": {"path": "x" * 10**6}},
            "should have at most 4096 characters, is 'xxx",
        ),
        # What is dropped has to exist.
        ({"train.epoch": ""}, "train.epoch: no such key. Did you mean 'train.epochs'?"),
        ({"model.hiden_size": ""}, "no such key. Did you mean 'model.hidden_size'?"),
        ({"trian": ""}, "trian: no such key. Did you mean 'train'?"),
        ({"train.lr.peak": ""}, "lr is a value"),
        ({"gate.min.f1": ""}, "gate.min.f1: no such key."),
        ({"model": ""}, "model: missing."),
        ({"name": ""}, "name: no such key"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_place(tmp_path, overrides, message):
    with pytest.raises(UsageError) as error:
        load_workload(write(tmp_path, LEAST + "    train: {lr: 1e-3}\n"), "toy", overrides)
    assert str(error.value).startswith(("workload toy: ", "model.family: ", "train.lr.peak: "))
    assert message in str(error.value)


def test_all_faults_are_told_a_line_for_each_place(tmp_path):
    overrides = {"train.lr": -1, "train.epoch": 3, "scale.workers": "two"}
    with pytest.raises(UsageError) as error:
        load_workload(write(tmp_path, LEAST), "toy", overrides)
    places = [line.split(": ")[-2] for line in str(error.value).splitlines()]
    assert places == ["train.lr", "train.epoch", "scale.workers"]


@pytest.mark.parametrize("name", ["a/b", "..", "-v", ".hidden", "two words", "é", "a:b", "x" * 101])
def test_a_name_that_something_would_refuse_later_is_refused(tmp_path, name):
    text = f"workloads: {{'{name}': {{data: {{path: x}}, model: {{family: vit}}}}}}"
    with pytest.raises(UsageError, match="ASCII letters"):
        load_workload(write(tmp_path, text), name)
    with pytest.raises(UsageError, match="ASCII letters"):
        load_workload(write(tmp_path, LEAST), "toy", as_name=name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No file"),
        (b"", "params.yaml needs `workloads:`"),
        (b"workloads: 3", "params.yaml needs `workloads:`"),
        (b"workloads: {a: 3}", "params.yaml needs `workloads:`"),
        (b"a: [", "params.yaml: line 2, "),
        (b"- 1", "params.yaml needs `workloads:`"),
        (b"\xff", "params.yaml: 'utf-8' codec"),
        (b"workloads: {tyo: {}}", "No workload 'toy' in params.yaml. Did you mean 'tyo'?"),
        (
            b"workloads: {toy: {}}\nstoer: {}",
            "params.yaml: stoer: no such key. Did you mean 'store",
        ),
        (b"workloads:\n  toy: {}\n  toy: {}\n", "params.yaml: line 3, while "),
        (b"workloads:\n  toy:\n    train: {lr: 1,\n  x: [\n", "params.yaml: line 5, "),
        (b"workloads:\n\ttoy: {}\n", "params.yaml: line 2, "),
        (b"workloads:\n  toy: *base\n", "params.yaml: line 2, "),
        # What is nested too deep would end the process.
        (b"workloads: " + b"[" * 100_000, "params.yaml: it is nested more than 100 deep"),
        (b"workloads: " + b"{a: " * 100_000, "params.yaml: it is nested more than 100 deep"),
        (b"workloads: " + b"? " * 100_000, "params.yaml: "),
    ],
)
def test_a_file_that_is_no_params_file_is_refused(tmp_path, content, said):
    path = tmp_path / "params.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        load_workload(path, "toy")
    assert str(error.value).startswith(said)
    assert len(str(error.value).splitlines()) == 1


def test_pretrained_weights_can_take_the_place_of_sizes(tmp_path):
    sizes = ("patch_size", "hidden_size", "layers", "heads")
    overrides = {f"model.{name}": "" for name in sizes} | {"model.pretrained": "no/such/folder"}
    model = load_workload(write(tmp_path, SIZED), "toy", overrides).model
    assert model.model_dump() == {"family": "vit", "pretrained": "no/such/folder"}
    with pytest.raises(UsageError, match=r"model\.heads= --set model\.hidden_size= --set model"):
        load_workload(write(tmp_path, SIZED), "toy", {"model.pretrained": "no/such/folder"})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (f"    train: {{lr: {10**400}}}\n", "train.lr: should be"),
        (f"    train: {{epochs: {'9' * 5000}}}\n", "Exceeds the limit (4300 digits)"),
        ("    train: {epochs: 2020-13-45}\n", "month must be in 1..12"),
        ("    train: {lr: .nan}\n", "train.lr: should be"),
        ("    train: {lr: -.inf}\n", "train.lr: should be"),
        ("    train: {1: 2}\n", "train.1"),
        ("    train: {compile: [1, 2]}\n", "train.compile: should be a valid"),
        ("    gate: {min: {1: 2.0}}\n", "gate.min.1"),
        ('    checks: {labels: ["\\ud800"]}\n', "invalid Unicode"),
        (f"    checks: {{labels: {list(range(99))}}}\n", "and 79 more"),
        (f"    train: {{lr: {'x' * 900_000}}}\n", "train.lr: should be a valid number, is 'xxx"),
    ],
)
def test_values_that_no_parameter_takes_are_refused_briefly(tmp_path, more, said):
    with pytest.raises(UsageError) as error:
        load_workload(write(tmp_path, LEAST + more), "toy")
    assert said in str(error.value)
    lines = str(error.value).splitlines()
    assert len(lines) <= 21 and max(map(len, lines)) < 400


@pytest.mark.parametrize("text", ["train.lr", "=3", "train.lr=[1", "train.lr=" + "[" * 30_000])
def test_an_override_that_is_no_assignment_is_refused(text):
    with pytest.raises(UsageError, match=r"^--set .{1,300}$"):
        parse_override(text)


def test_another_name_is_not_that_of_an_entry(tmp_path):
    path = write(tmp_path, LEAST)
    assert load_workload(path, "toy", as_name="photos").name == "photos"
    with pytest.raises(UsageError, match=r"--as toy: params\.yaml has a workload of that name"):
        load_workload(path, "toy", as_name="toy")


def test_a_section_is_read_alone_and_has_defaults(tmp_path):
    path = write(tmp_path, LEAST + "    drift: {threshold: 2.5}\n  other: {}\n")
    assert load_section(path, "toy", Drift) == load_workload(path, "toy").drift
    assert load_section(path, "toy", Drift).threshold == 2.5
    assert load_section(path, "photos", Drift) == Drift()  # a name given with --as
    assert load_section(path, "other", Gate) == Gate()
    with pytest.raises(UsageError, match=r"Did you mean 'drift\.threshold'"):
        load_section(write(tmp_path, LEAST + "    drift: {treshold: 2.5}\n"), "toy", Drift)


def test_to_read_a_workload_connects_to_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("subprocess.run", None)  # such as `nvidia-smi`
    monkeypatch.setattr("socket.socket", None)
    overrides = {"model.pretrained": "owner/name", "scale.workers": 2}
    workload = load_workload(write(tmp_path, LEAST), "toy", overrides)
    assert workload.train.precision == workload.scale.threads == "auto"


@pytest.mark.parametrize("path", [SHIPPED, *EXAMPLES], ids=lambda path: path.stem)
def test_decided_parameters_can_be_read_again_as_a_lineage_records_them(tmp_path, path):
    [name] = workload_names(path)
    decided = resolve(load_workload(path, name), Project(tmp_path))
    recorded = decided.model_dump(mode="json", exclude={"name", "tune"})
    again = load_workload(write(tmp_path, json.dumps({"workloads": {name: recorded}})), name)
    assert again.model_dump(exclude={"tune"}) == decided.model_dump(exclude={"tune"})


@pytest.mark.parametrize(
    "value",
    [1, 0.1, 1e-05, 3.4e12, True, None, "adamw", "no", "1e-3", "null", "a: b", " ü b", [1, 2.5]],
)  # fmt: skip
def test_a_value_is_written_as_it_is_read(value):
    name, again = parse_override(f"key={as_yaml(value)}")
    assert "\\u" not in as_yaml(value)
    assert (name, again, type(again)) == ("key", value, type(value))


LOGINS = [
    "https://ann:geheim-1@host.org/pets.zip",
    "https://geheim-2@host.org/pets.zip",
    "https://host.org/pets.zip?rev=3&token=geheim-3",
    "https://host.org/pets.zip?X-Amz-Credential=geheim-4%2Fs3&X-Amz-Signature=geheim-5&x=1",
    "zip://*.png::https://ann:geheim-6@host.org/pets.zip",
]
PUBLIC = [
    "data/a@b:c",
    "https://host.org/pets@v1.zip?rev=3&design=4",
    "sftp://me@host/pets",
    "me/pets@v1",
]


@pytest.mark.parametrize("url", LOGINS)
def test_a_url_with_a_login_is_refused_and_the_login_is_not_repeated(tmp_path, url):
    params = write(tmp_path, LEAST)
    for refused in (
        lambda: load_workload(params, "toy", {"data.path": url}),
        lambda: check_input(Project(tmp_path), url),
    ):
        with pytest.raises(UsageError, match=r"belongs into ~/\.netrc") as error:
            refused()
        assert "geheim" not in str(error.value)


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_no_login_is_taken(text):
    assert not has_login(text)


def test_the_url_of_a_server_is_shown_without_its_login():
    shown = without_login("postgresql+psycopg2://ann:ge@he/im@host:1/db?password=geheim")
    assert shown == "postgresql+psycopg2://host:1/db"
