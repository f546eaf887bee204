"""The whole flow on the starter data, shortened: what is cached, and what is not."""

import json
import re
import shutil
import signal
import subprocess
from itertools import chain
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from retrain import tracking
from retrain.params import workload_names
from retrain.project import Project
from retrain.registry import versions
from tests import warm_python
from tests.flows import preloaded
from tests.flows.conftest import ROOT, draw_photos, ran, until
from tests.hub import (
    write_beans,
    write_cifar10,
    write_clip,
    write_doggos,
    write_mnist,
    write_vit,
)

BEFORE_THE_GATE = ["pull", "validate", "preprocess", "train", "evaluate"]
NOT_NEEDED = {"torch", "ray", "transformers", "great_expectations", "dvc", "sklearn"}


def last_run(clone):
    return json.loads(clone.retrain("status", "--json").stdout)[0]["last_run"]


def test_a_first_run_runs_everything_and_promotes(clone, first):
    assert ran(first) == BEFORE_THE_GATE
    assert [step["step"] for step in first["steps"]] == [*BEFORE_THE_GATE, "gate", "promote"]
    assert first["data"]["rows"] == {"train": 1237, "val": 200, "test": 360}
    assert first["data"]["tracked"]
    assert first["decision"]["verdict"] == "first"
    assert first["model"]["version"] == 1
    assert first["model"]["aliases"] == ["champion", "reference"]
    for step in first["steps"][:5]:
        assert (Path(step["path"]) / "manifest.json").is_file()
    assert (clone.root / first["look"]["Data Docs"]).is_file()


def train_and_list_imports(clone, *arguments):
    program = (
        "import sys; from retrain.cli.main import main; code = main(sys.argv[1:]);"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = clone.run(warm_python.REAL, "-c", program, "train", "vit", "--json", *arguments)
    return json.loads(done.stdout), set(done.stderr.split())


def test_a_second_run_is_cached_imports_nothing_heavy_and_registers_nothing(clone, first):
    again, imported = train_and_list_imports(clone, "--run")
    assert imported & NOT_NEEDED == set()
    assert ran(again) == []
    assert not again["unchanged"]
    assert again["run"] != first["run"]
    assert again["decision"]["verdict"] == "champion already"
    assert again["model"] == first["model"]


def test_with_nothing_changed_the_last_run_stands_and_nothing_is_started(clone, first):
    last = clone.train("--run")
    again, imported = train_and_list_imports(clone)
    assert imported & (NOT_NEEDED | {"prefect", "mlflow", "pandas"}) == set()
    assert again["unchanged"]
    assert (again["run"], again["time"]) == (last["run"], last["time"])
    same = ("data", "metrics", "champion", "decision", "model", "look")
    assert {name: again[name] for name in same} == {name: last[name] for name in same}
    assert ran(again) == []
    assert [s["digest"] for s in again["steps"]] == [s["digest"] for s in last["steps"]]
    assert last_run(clone)["run"] == last["run"]
    output = clone.retrain("train", "vit").stdout
    assert output.startswith(f"Nothing changed since run {last['run'][:8]} of {last['time']}; ")
    assert output.endswith(f"version {last['model']['version']} is champion.\n")


def test_a_changed_parameter_runs_training_and_what_follows(clone, first):
    # Out of reach: the model is rejected, which is no failure.
    again = clone.train("--set", "train.lr=0.0007", "--set", "gate.min={accuracy: 0.999}")
    assert ran(again) == ["evaluate_champion", "train", "evaluate", "compare_champion"]
    why = {step["step"]: step["why"] for step in again["steps"]}
    assert why["train"] == "train.lr 0.003 -> 0.0007"
    assert again["model"]["digest"] != first["model"]["digest"]
    assert again["champion"]["version"] == first["model"]["version"]
    assert again["decision"]["verdict"] == "below bounds"
    assert again["model"]["aliases"] == []
    still = clone.train("--set", "train.lr=0.0007", "--set", "gate.min={accuracy: 0.999}")
    assert still["unchanged"]
    assert still["model"] == again["model"]
    assert "would be rejected (accuracy >= 0.999 is" in still["outcome"]
    assert not still["rejected"]  # by nobody who is to be told
    other_rule = clone.train("--set", "train.lr=0.0007", "--set", "gate.min={accuracy: 0.998}")
    assert not other_rule["unchanged"]
    assert ran(other_rule) == []
    assert clone.train()["model"] == first["model"]


def test_what_happened_in_the_registry_is_noticed(clone, first):
    """Somebody moves the alias, takes the model out, or the whole registry is gone."""
    rejected = ("--set", "train.lr=0.0007", "--set", "gate.min={accuracy: 0.999}")
    version = str(clone.train(*rejected)["model"]["version"])
    assert clone.train(*rejected)["unchanged"]
    client = tracking.client(Project(clone.root))
    client.set_registered_model_alias("vit", "champion", version)
    assert clone.train(*rejected)["decision"]["verdict"] == "champion already"
    assert clone.train(*rejected)["unchanged"]
    client.set_registered_model_alias("vit", "champion", str(first["model"]["version"]))
    assert clone.train(*rejected)["decision"]["verdict"] == "below bounds"
    client.delete_model_version("vit", version)
    again = clone.train(*rejected)
    assert not again["unchanged"]
    assert again["model"]["version"] > int(version)
    registry, aside = clone.root / "mlflow.db", clone.root / "aside.db"
    registry.rename(aside)
    gone = clone.retrain("train", "vit", *rejected, "--set", "gate.min={}", code=1)
    assert "ledger/vit.json names another one" in gone.stderr
    aside.replace(registry)


def test_a_run_that_failed_or_was_killed_does_not_stand(clone, first, tmp_path):
    clone.train("--run")
    assert clone.train()["unchanged"]
    photos = draw_photos(tmp_path / "photos")
    (photos / "class-0" / "3.png").write_bytes(b"no image")
    done = clone.retrain("train", "vit", "--set", f"data.path={photos}", code=1)
    assert "class-0/3.png" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((clone.root / ".retrain" / "store").rglob("*.partial"))
    assert not clone.train()["unchanged"]
    assert clone.train()["unchanged"]
    output, scratch = tmp_path / "output", clone.root / ".retrain" / "store" / "scratch"
    arguments = ("train", "vit", "--set", "train.epochs=500")
    killed = preloaded.start(arguments, clone.root, clone.environment, output, output)
    until(lambda: list(scratch.glob("train/*/*")))
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not clone.train()["unchanged"]


def test_a_deleted_output_is_made_again_and_nothing_after_it_runs(clone, first):
    trained = next(step for step in first["steps"] if step["step"] == "train")
    shutil.rmtree(trained["path"])
    again = clone.train()
    assert ran(again) == ["train"]
    assert next(s for s in again["steps"] if s["step"] == "train")["digest"] == trained["digest"]


def test_changed_logic_of_the_model_runs_training_and_what_follows(clone, first):
    source = (clone.root / "models" / "vit.py").read_text()
    clone.edit(
        "models/vit.py", "def faults(", "def unused() -> int:\n    return 1\n\n\ndef faults("
    )
    again = clone.train()
    assert [name for name in ran(again) if name != "evaluate_champion"][:2] == ["train", "evaluate"]
    # The same weights, but other code will answer: a version of its own, which need not be better.
    assert again["decision"]["verdict"] == "repackaged"
    assert again["model"]["digest"] == first["model"]["digest"]
    assert again["model"]["version"] > first["model"]["version"]
    assert "in a new package, is the champion now" in again["outcome"]
    (clone.root / "models" / "vit.py").write_text(source)
    back = clone.train()
    assert [name for name in ran(back) if name != "evaluate_champion"] == []
    timed = {"latency": back["model"]["latency"]}  # it was checked again
    assert back["model"] == first["model"] | timed
    assert clone.train()["decision"]["verdict"] == "champion already"


def test_another_version_of_the_data_runs_everything(clone, first):
    clone.run("dvc", "pull", "-q", "data")
    (clone.root / "data" / "digits" / "val.parquet").unlink()
    clone.run("dvc", "add", "-q", "data")
    again = clone.train()
    assert [name for name in ran(again) if name != "evaluate_champion"][:5] == BEFORE_THE_GATE
    assert again["data"]["rows"]["train"] + again["data"]["rows"]["val"] == 1237
    old = clone.train("--data-rev", "HEAD")
    assert ran(old) == []
    assert old["data"]["version"] == first["data"]["version"]
    clone.run("git", "checkout", "-q", "data.dvc")


def test_own_images_have_a_name_and_a_champion_of_their_own(clone, first, tmp_path):
    served, photos = champion(clone), draw_photos(tmp_path / "photos")
    settings = {"data.path": photos, "images.channels": 3, "images.size": 8, "train.epochs": 20}
    own = ["--as", "photos", *chain(*(("--set", f"{k}={v}") for k, v in settings.items()))]
    done = clone.train(*own)
    assert not done["data"]["tracked"]
    assert sum(done["data"]["rows"].values()) == 36
    assert done["model"]["name"] == done["workload"] == "photos"
    assert done["model"]["aliases"] == ["champion", "reference"]
    assert champion(clone, "photos").version == 1
    assert champion(clone) == served
    status = json.loads(clone.retrain("status", "--json").stdout)
    ours = {*workload_names(ROOT / "params.yaml"), "photos"}
    assert {each["workload"] for each in status} == ours
    events = json.loads(clone.retrain("history", "photos", "--json").stdout)
    assert [event["action"] for event in events] == ["promoted"]

    (photos / "class-0").rename(photos / "class-00")  # natural order stays, so do the weights
    refused = clone.retrain("train", "vit", *own, code=1).stderr
    assert "missing: class-0 (12 images then, 0 now)" in refused
    assert last_steps(clone, "photos") == ["pull", "validate"]
    rules = {"may_drop": "[class-0]", "min_compared": 1, "margin": 0.9}
    rules = [word for key, value in rules.items() for word in ("--set", f"gate.{key}={value}")]
    renamed = clone.train(*own, *rules)
    assert renamed["model"]["digest"] == done["model"]["digest"]
    assert renamed["decision"]["verdict"] == "not worse"
    assert "The comparison is of the classes that both know." in renamed["decision"]["says"][0]
    assert (renamed["model"]["version"], renamed["model"]["aliases"]) == (2, ["champion"])


def champion(clone, name="vit"):
    return versions.champion(Project(clone.root), name)


def last_steps(clone, workload):
    return [step["step"] for step in json.loads(clone.retrain("why", workload, "--json").stdout)]


def test_data_with_other_classes_is_refused_before_it_is_prepared(clone, first, tmp_path):
    photos = draw_photos(tmp_path / "photos")
    done = clone.retrain("train", "vit", "--set", f"data.path={photos}", code=1)
    assert "The data lacks 10 of the 10 classes of vit version" in done.stderr
    assert "the data's classes: class-0, class-1, class-2" in done.stderr
    assert last_steps(clone, "vit") == ["pull", "validate"]


def files(root):
    """All files of a clone, with their times."""
    return {
        path: path.stat().st_mtime_ns
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_what_a_person_tries_is_compared_and_promoted_only_on_demand(clone, first):
    better, served = ("--set", "train.epochs=8"), champion(clone)
    before = files(clone.root)
    preview = json.loads(clone.retrain("train", "vit", *better, "--dry-run", "--json").stdout)
    would = {step["step"]: (step["would"], step["why"]) for step in preview["steps"]}
    assert would["preprocess"][0] == "come from the cache"
    assert would["train"][0] == "run"
    assert "train.epochs 2 -> 8" in would["train"][1]
    assert would["promote"] == ("depend", "on what train gives")
    assert "train would be the first step to run" in preview["outcome"]
    assert files(clone.root) == before

    tried = clone.train(*better)
    number = tried["model"]["version"]
    says = f"version {number} would be the champion over version {served.version}; add "
    assert says + "--promote to promote it" in tried["outcome"]
    assert (tried["decision"]["verdict"], tried["model"]["aliases"]) == ("better", [])
    assert champion(clone) == served
    again = clone.train(*better)
    assert again["unchanged"]
    assert says in again["outcome"]
    promoted = clone.train(*better, "--promote")
    assert ran(promoted) == []
    assert promoted["model"].pop("latency")["calls"] >= 20  # only now measured
    assert promoted["model"] == tried["model"] | {"aliases": ["champion", "reference"]}
    assert f"vit version {number} is the champion now" in promoted["outcome"]
    events = json.loads(clone.retrain("history", "vit", "--json").stdout)
    said = [(event["action"], event["version"]) for event in events]
    assert said[-2:] == [("compared", number), ("promoted", number)]
    client = tracking.client(Project(clone.root))
    for alias in ("champion", "reference"):
        client.set_registered_model_alias("vit", alias, str(served.version))


def test_any_two_versions_are_compared_and_nothing_is_changed(clone, first, tmp_path):
    number = clone.train("--set", "train.epochs=8")["model"]["version"]
    before = clone.retrain("history", "vit", "--json").stdout, champion(clone)
    output = tmp_path / "differences.parquet"
    arguments = ("compare", "vit@1", f"vit@{number}", "--output", str(output), "--json")
    document = json.loads(clone.retrain(*arguments).stdout)
    assert (clone.retrain("history", "vit", "--json").stdout, champion(clone)) == before
    assert (document["a"]["version"], document["b"]["version"]) == (1, number)
    assert document["data"] == f"the test split of vit version {number}"
    found = document["comparison"]
    assert (found["images"], found["learnt"], found["recorded"]) == (360, [0, 0], [True, True])
    for name, value in first["metrics"].items():
        if name != "rows":
            assert found["metrics"][name]["a"] == pytest.approx(value, abs=1e-4)
    assert found["metrics"]["accuracy"]["outcome"] == "better"
    assert document["outcome"].startswith(f"vit version {number}: accuracy is +")
    assert pq.read_table(output).num_rows == 360 - found["same"]
    refused = clone.retrain(*arguments[:-1], code=2).stderr
    assert refused == f"retrain: --output {output} exists: add --force to replace it.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "vti"], 2, "Did you mean 'vit'?"),
        (["train", "vit", "--set", "train.epoch=3"], 2, "Did you mean 'train.epochs'?"),
        (["train", "vit", "--set", "train.epochs=three"], 2, "valid integer"),
        (["train", "vit", "--data-rev", "nowhere"], 2, "nowhere"),
        (["train", "vit", "--set", "data.path=/nowhere"], 2, "/nowhere"),
        (["train"], 2, "WORKLOAD"),
        (["train", "vit", "--dry-run", "--set", "data.path=/nowhere"], 2, "/nowhere"),
        (["train", "vit", "--as", "a/b"], 2, "ASCII letters"),
        (["validate", "vit", "--promote"], 2, "--promote"),
        (["why", "vti"], 2, "Did you mean 'vit'?"),
    ],
)
def test_wrong_usage_is_one_clear_line(clone, arguments, code, message):
    done = clone.retrain(*arguments, code=code)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_status_history_and_why_tell_of_the_runs(clone, first):
    clone.train("--run")
    status = json.loads(clone.retrain("status", "--json").stdout)
    assert status[0]["champion"]["version"] >= 1
    events = json.loads(clone.retrain("history", "vit", "--json").stdout)
    assert events[0]["verdict"] == "first"
    why = json.loads(clone.retrain("why", "vit", "--json").stdout)
    assert [step["step"] for step in why][:5] == BEFORE_THE_GATE
    assert f"version {status[0]['champion']['version']}" in clone.retrain("status").stdout
    whole = clone.retrain("status", "vit").stdout
    assert "beans" not in whole
    assert re.search(r"best epoch \d: val_accuracy 0\.\d+, val_loss", whole)
    assert "worst_class_recall" in whole
    for whose in ("the champion", "the last run's model"):
        images = "channels 1, mean 0.5, resampling bicubic, resize crop, size 8, std 0.5"
        assert f"\n{whose} takes images of {images}\n" in whole
    assert "promoted" in clone.retrain("history", "vit").stdout
    assert "train                cached" in clone.retrain("why", "vit").stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What replaces the data and the weights of workloads that would download them."""
    folder = tmp_path_factory.mktemp("hub")
    write_beans(folder / "beans")
    write_vit(folder / "vit", 32)
    beans = {
        "data.path": folder / "beans", "data.format": "parquet", "images.size": 32,
        "model.pretrained": folder / "vit",
    }  # fmt: skip
    write_mnist(folder / "mnist")
    mnist = {
        "data.path": folder / "mnist", "data.format": "parquet",
        "model.config.embedding_size": 8, "model.config.hidden_sizes": [8, 8, 8, 8],
    }  # fmt: skip
    write_doggos(folder / "doggos")
    write_clip(folder / "clip", 32)
    doggos = {
        "data.path": folder / "doggos", "images.size": 32, "model.pretrained": folder / "clip",
    }  # fmt: skip
    write_cifar10(folder / "cifar10")
    cifar10 = {
        "data.path": folder / "cifar10", "data.format": "parquet",
        "model.hidden_size": 16, "model.layers": 1, "model.heads": 2,
    }  # fmt: skip
    all_changes = {"beans": beans, "mnist": mnist, "doggos": doggos, "cifar10": cifar10}
    return {
        name: [f"{key}={value}" for key, value in changes.items()]
        for name, changes in all_changes.items()
    }


@pytest.mark.parametrize("workload", workload_names(ROOT / "params.yaml"))
def test_every_shipped_workload_runs(clone, small, workload):
    changes = [word for each in small.get(workload, ()) for word in ("--set", each)]
    assert clone.train(*changes, workload=workload)["model"]["version"] >= 1


def test_another_head_on_the_same_embeddings_embeds_nothing_again(clone, small):
    changes = [word for each in small["doggos"] for word in ("--set", each)]
    first = clone.train(*changes, workload="doggos")
    assert [step["step"] for step in first["steps"]][2:5] == ["preprocess", "embed", "train"]
    again = clone.train(*changes, "--set", "model.hidden=64", workload="doggos")
    assert ran(again) == ["train", "evaluate"]
    planned = clone.retrain("train", "vit", "--dry-run", "--json", "--refresh")
    assert "embed" not in [step["step"] for step in json.loads(planned.stdout)["steps"]]


def test_nothing_was_left_running_by_a_run(clone, first):
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(clone.root) not in listed.stdout
