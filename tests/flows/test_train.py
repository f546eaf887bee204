"""The whole flow on the starter data, shortened: what is cached, and what is not."""

import json
import re
import shutil
from itertools import chain
from pathlib import Path

import pytest

from retrain.messages import local_time
from retrain.params import workload_names
from retrain.project import Project
from retrain.registry import tracking, versions
from tests.flows.conftest import RETRAIN, ROOT, draw_photos, ran, until

BEFORE_THE_GATE = ["pull", "validate", "preprocess", "train", "evaluate"]
NOT_NEEDED = {"torch", "ray", "transformers", "great_expectations", "dvc", "sklearn"}
# Out of reach: the model is rejected, which is no failure.
REJECTED = ("--set", "train.lr=0.0007", "--set", "gate.min={accuracy: 0.999}")


def settings(values):
    return [*chain(*(("--set", f"{name}={value}") for name, value in values.items()))]


def champion(clone, name="vit"):
    return versions.champion(Project(clone.root), name)


def last_steps(clone, workload):
    return [step["step"] for step in clone.json("why", workload)]


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


@pytest.mark.slow
def test_a_call_from_python_is_the_same_run(clone, first):
    last = clone.train("--run")
    program = "from flows.train import train; import json; print(json.dumps(train('vit')))"
    document = json.loads(clone.run(RETRAIN[0], "-c", program).stdout)
    assert (document["state"], document["run"]) == ("Skipped", last["run"])
    assert document["model"] == last["model"]
    program = "from flows.train import train; train('vit', {'train.epochs': 1}, run=True)"
    clone.run(RETRAIN[0], "-c", program)
    again = clone.train("--set", "train.epochs=1")
    assert (again["state"], ran(again)) == ("Skipped", [])


def train_and_list_imports(clone, *arguments):
    program = (
        "import sys; from retrain.cli.main import main; code = main(sys.argv[1:]);"
        "print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = clone.run(RETRAIN[0], "-c", program, "train", "vit", "--json", *arguments)
    return json.loads(done.stdout), set(done.stderr.split())


def test_an_unchanged_run_starts_nothing_and_imports_nothing_heavy(clone, first):
    last, imported = train_and_list_imports(clone, "--run")
    assert imported & NOT_NEEDED == set()
    assert ran(last) == []
    assert not last["unchanged"]
    assert last["run"] != first["run"]
    assert last["decision"]["verdict"] == "champion already"
    assert last["model"] == first["model"]

    again, imported = train_and_list_imports(clone)
    assert imported & (NOT_NEEDED | {"mlflow", "pandas"}) == set()
    assert again["unchanged"]
    assert (again["run"], again["time"]) == (last["run"], last["time"])
    same = ("data", "metrics", "champion", "decision", "model", "look")
    assert {name: again[name] for name in same} == {name: last[name] for name in same}
    assert ran(again) == []
    assert [s["digest"] for s in again["steps"]] == [s["digest"] for s in last["steps"]]
    assert clone.json("status", "vit")[0]["last_run"]["run"] == last["run"]
    output = clone.retrain("train", "vit").stdout
    assert output.startswith(
        f"Nothing changed since run {last['run'][:8]} of {local_time(last['time'])}; "
    )
    assert output.endswith(f"{last['outcome']}\n")
    assert last["outcome"].endswith(
        f"already the champion, vit version {last['model']['version']}."
    )


def test_a_changed_parameter_runs_training_and_what_follows(clone, first):
    again = clone.train(*REJECTED)
    assert ran(again) == ["evaluate_champion", "train", "evaluate", "compare_champion"]
    why = {step["step"]: step["why"] for step in again["steps"]}
    assert why["train"] == "train.lr 0.003 -> 0.0007"
    assert again["model"]["digest"] != first["model"]["digest"]
    assert again["champion"]["version"] == first["model"]["version"]
    assert again["decision"]["verdict"] == "below bounds"
    assert again["model"]["aliases"] == []
    still = clone.train(*REJECTED)
    assert still["unchanged"]
    assert still["model"] == again["model"]
    assert "would be rejected: accuracy >= 0.999 fails with" in still["outcome"]
    assert not still["rejected"]  # by nobody who is to be told
    other_rule = clone.train(*REJECTED[:-1], "gate.min={accuracy: 0.998}")
    assert not other_rule["unchanged"]
    assert ran(other_rule) == []
    assert clone.train()["model"] == first["model"]


def test_what_happened_in_the_registry_is_noticed(clone, first):
    """Somebody moves the alias, takes the model out, or the whole registry is gone."""
    version = str(clone.train(*REJECTED)["model"]["version"])
    client = tracking.client(Project(clone.root))
    client.set_registered_model_alias("vit", "champion", version)
    assert clone.train(*REJECTED)["decision"]["verdict"] == "below bounds"
    champion = client.get_model_version_by_alias("vit", "champion")
    assert champion.version == first["model"]["version"]  # as the ledger says
    client.delete_model_version("vit", version)
    again = clone.train(*REJECTED)
    assert not again["unchanged"]
    assert again["model"]["version"] > int(version)


def test_a_run_on_bad_data_fails_without_a_trace_and_does_not_stand(clone, first, tmp_path):
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


@pytest.mark.slow
def test_a_run_that_was_killed_does_not_stand(clone, first, tmp_path):
    clone.train()
    assert clone.train()["unchanged"]
    scratch = clone.root / ".retrain" / "store" / "scratch"
    killed = clone.start("train", "vit", "--set", "train.epochs=500", output=tmp_path / "output")
    until(lambda: list(scratch.glob("train/*/*")))
    killed.kill()
    killed.wait()
    assert not clone.train()["unchanged"]


def test_a_deleted_output_is_made_again_and_nothing_after_it_runs(clone, first):
    trained = next(step for step in first["steps"] if step["step"] == "train")
    shutil.rmtree(trained["path"])
    again = clone.train()
    assert ran(again) == ["train"]
    assert next(s for s in again["steps"] if s["step"] == "train")["digest"] == trained["digest"]


@pytest.mark.slow
def test_changed_logic_of_the_model_runs_training_and_what_follows(clone, first):
    def train():  # with the clone's own code
        return json.loads(clone.run(*RETRAIN, "train", "vit", "--json").stdout)

    source = (clone.root / "models" / "auto_network.py").read_text()
    clone.edit(
        "models/auto_network.py",
        "def rebuild(",
        "def unused() -> int:\n    return 1\n\n\ndef rebuild(",
    )
    again = train()
    assert [name for name in ran(again) if name != "evaluate_champion"][:2] == ["train", "evaluate"]
    # The same weights, but other code will answer: a version of its own, which need not be better.
    assert again["decision"]["verdict"] == "repackaged"
    assert again["model"]["digest"] == first["model"]["digest"]
    assert again["model"]["version"] > first["model"]["version"]
    assert "is the new champion, in place of version" in again["outcome"]
    assert "it is the training of the champion in a new package; accuracy " in again["outcome"]
    (clone.root / "models" / "auto_network.py").write_text(source)
    back = train()
    # It is compared with a champion that the first run did not have.
    assert {*ran(back)} <= {"evaluate_champion", "compare_champion"}
    assert back["model"] == first["model"]


@pytest.mark.slow
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
    clone.run("dvc", "checkout", "-q", "data")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of own images, and the options of a run on it."""
    folder = draw_photos(tmp_path_factory.mktemp("own") / "photos")
    values = {"data.path": folder, "images.channels": 3, "images.size": 8, "train.epochs": 20}
    return folder, ["--as", "photos", *settings(values)]


def test_own_images_have_a_name_and_a_champion_of_their_own(clone, first, photos):
    served = champion(clone)
    done = clone.train(*photos[1])
    assert not done["data"]["tracked"]
    assert sum(done["data"]["rows"].values()) == 36
    assert done["model"]["name"] == done["workload"] == "photos"
    assert done["model"]["aliases"] == ["champion", "reference"]
    assert champion(clone, "photos").version == 1
    assert champion(clone) == served
    ours = {*workload_names(ROOT / "params.yaml"), "photos"}
    assert {each["workload"] for each in clone.json("status")} == ours
    assert [event["action"] for event in clone.json("history", "photos")] == ["promoted"]


def test_what_a_person_should_know_is_told_first_and_is_an_error_in_a_strict_run(clone, first):
    uncommitted = "These files differ from the commit that the run is recorded with: params.yaml."
    assert first["warnings"] == [uncommitted]
    stricter = ("--strict", "--set", "train.lr=0.0008", "--set", "gate.margin=0.01")
    done = clone.retrain("train", "vit", *stricter, code=2)
    assert done.stderr.startswith(f"retrain: workload vit: {uncommitted}\nA strict run")
    assert last_steps(clone, "vit") == [step["step"] for step in first["steps"]]  # nothing ran

    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    clone.run("git", *who, "commit", "-qam", "parameters")
    try:
        done = clone.retrain("train", "vit", *stricter, code=2)
        assert "workload vit: With 360 test images, a model that is as good" in done.stderr
        assert "a margin of 5.3 points; that of 1.0 points needs about 8,862." in done.stderr
        assert last_steps(clone, "vit") == ["pull", "validate", "preprocess"]
    finally:
        clone.run("git", "reset", "-q", "HEAD~1")
    unchanged = clone.retrain("train", "vit", "--run")
    assert uncommitted not in unchanged.stdout + unchanged.stderr  # no step may run
    unchanged = clone.retrain("train", "vit", "--strict")
    assert unchanged.stdout.startswith("Nothing changed since run ")
    assert unchanged.stderr == ""


@pytest.mark.slow
def test_a_class_that_is_renamed_has_to_be_dropped_by_name(clone, first, photos):
    folder, own = photos
    done = clone.train(*own)
    (folder / "class-0").rename(folder / "class-00")  # natural order stays, so do the weights
    refused = clone.retrain("train", "vit", *own, code=1).stderr
    assert "missing, with the images then: class-0 (12)" in refused
    assert last_steps(clone, "photos") == ["pull", "validate"]
    rules = {"gate.may_drop": "[class-0]", "gate.min_compared": 1, "gate.margin": 0.9}
    renamed = clone.train(*own, *settings(rules))
    assert renamed["model"]["digest"] == done["model"]["digest"]
    assert renamed["decision"]["verdict"] == "not worse"
    classes = "The classes are not those of photos version 1, the champion: class-00 is new, and"
    assert f"{classes} class-0 is gone." in renamed["warnings"]
    assert "does not know their classes." in renamed["decision"]["says"][0]
    assert (renamed["model"]["version"], renamed["model"]["aliases"]) == (2, ["champion"])


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
    preview = clone.json("train", "vit", *better, "--dry-run")
    would = {step["step"]: (step["would"], step["why"]) for step in preview["steps"]}
    assert would["preprocess"][0] == "come from the cache"
    assert would["train"][0] == "run"
    assert "train.epochs 2 -> 8" in would["train"][1]
    assert would["promote"] == ("depend", "on what train gives")
    assert "train would be the first step to run" in preview["outcome"]
    assert files(clone.root) == before

    tried = clone.train(*better)
    number = tried["model"]["version"]
    says = f"would be the new champion, in place of version {served.version}; add "
    assert says + "--promote to promote it" in tried["outcome"]
    assert (tried["decision"]["verdict"], tried["model"]["aliases"]) == ("better", [])
    assert champion(clone) == served
    again = clone.train(*better)
    assert again["unchanged"]
    assert says in again["outcome"]

    promoted = clone.train(*better, "--promote")
    assert ran(promoted) == []
    assert promoted["model"] == tried["model"] | {"aliases": ["champion", "reference"]}
    assert f"vit version {number} is the new champion" in promoted["outcome"]
    said = [(event["action"], event["version"]) for event in clone.json("history", "vit")]
    assert said[-2:] == [("compared", number), ("promoted", number)]
    tell_of_the_promotion(clone, number, promoted)
    client = tracking.client(Project(clone.root))
    for alias in ("champion", "reference"):
        client.set_registered_model_alias("vit", alias, str(served.version))


def tell_of_the_promotion(clone, number, promoted):
    """`history` and `status` show how sure the difference is, and what the gate can see."""
    comparison = promoted["decision"]["comparisons"]["champion"]
    accuracy = comparison["metrics"]["accuracy"]
    [*_, entry] = clone.json("history", "vit")
    numbers = [100 * accuracy[name] for name in ("difference", "low", "high")]
    difference = "{:+.1f} points ({:+.1f} to {:+.1f})".format(*numbers)
    told = {"metric": "accuracy", "images": 360, "says": difference}
    assert entry["comparison"] == accuracy | told
    shown = clone.retrain("history", "vit").stdout
    newest = shown.splitlines()[3]  # below the heads of the columns
    assert f"1 -> {number}" in newest
    assert difference in newest
    [state] = clone.json("status", "vit")
    assert state["data"] == promoted["data"]["version"]
    assert state["resolution"]["units"] == comparison["units"]
    output = clone.retrain("status").stdout
    assert f"vit: {state['resolution']['says']}\n" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train vti", "Did you mean 'vit'?"),
        ("train vit --set train.epoch=3", "epochs'?"),
        ("train vit --set train.epochs=three", "valid integer"),
        ("train vit --data-rev nowhere", "nowhere"),
        ("train vit --set data.path=/nowhere", "/nowhere"),
        ("train vit --dry-run --set data.path=/nowhere", "/nowhere"),
        ("train vit --as a/b", "ASCII letters"),
        ("validate vit --promote", "--promote"),
        ("why vti", "Did you mean 'vit'?"),
    ],
)
def test_wrong_usage_is_one_clear_line(clone, arguments, message):
    done = clone.retrain(*arguments.split(), code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_status_history_and_why_tell_of_the_runs(clone, first):
    clone.train("--run")
    [status] = clone.json("status", "vit")
    assert clone.json("history", "vit")[0]["verdict"] == "first"
    assert last_steps(clone, "vit")[:5] == BEFORE_THE_GATE
    assert f"version {status['champion']['version']}" in clone.retrain("status").stdout
    whole = clone.retrain("status", "vit").stdout
    assert "photos" not in whole
    assert re.search(r"best epoch \d: val_accuracy 0\.\d+, val_loss", whole)
    assert "worst_class_recall" in whole
    for whose in ("the champion", "the last run's model"):
        images = "channels 1, mean 0.5, resampling bicubic, resize crop, size 8, std 0.5"
        assert f"\n{whose} takes images of {images}\n" in whole
    assert "promoted" in clone.retrain("history", "vit").stdout
    assert "train                cached" in clone.retrain("why", "vit").stdout
