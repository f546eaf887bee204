"""The whole flow on the starter data, shortened: what is cached, and what is not."""

import json
import re
from itertools import chain

import pytest

from retrain.params import workload_names
from retrain.project import Project
from retrain.registry import tracking, versions
from retrain.runs.console import local_time
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
    chain = clone.json("lineage", "vit")["lineage"]["steps"]
    assert [(made["step"], made["key"], made["digest"]) for made in chain] == [
        (step["step"], step["key"], step["digest"]) for step in first["steps"][:5]
    ]
    assert {made["provenance"]["run"] for made in chain} == {first["run"]}


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
    assert clone.json("status", "vit")[0]["last_run"]["run"] == last["run"]
    output = clone.retrain("train", "vit").stdout
    since = f"run {last['run'][:8]} of {local_time(last['time'])}"
    assert output == f"Nothing changed since {since}; {last['outcome']}\n"


@pytest.mark.slow
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
    clone.train()
    photos = draw_photos(tmp_path / "photos")
    (photos / "class-0" / "3.png").write_bytes(b"no image")
    done = clone.retrain("train", "vit", "--set", f"data.path={photos}", code=1)
    assert "class-0/3.png" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((clone.root / ".retrain" / "store").rglob("*.partial"))
    assert not clone.train()["unchanged"]


def test_the_data_of_another_revision_is_asked_of_git(clone):
    refused = clone.retrain("train", "vit", "--data-rev", "nowhere", code=2)
    assert "nowhere" in refused.stderr


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
def test_own_images_have_a_champion_of_their_own_and_a_renamed_class_is_dropped_by_name(
    clone, first, tmp_path
):
    folder, served = draw_photos(tmp_path / "photos"), champion(clone)
    values = {"data.path": folder, "images.channels": 3, "images.size": 8, "train.epochs": 20}
    own = ["--as", "photos", *settings(values)]
    done = clone.train(*own)
    assert done["model"]["name"] == done["workload"] == "photos"
    assert done["model"]["aliases"] == ["champion", "reference"]
    assert champion(clone) == served
    ours = {*workload_names(ROOT / "params.yaml"), "photos"}
    assert {each["workload"] for each in clone.json("status")} == ours
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
    assert "does not know their classes." in renamed["decision"]["says"][1]
    assert (renamed["model"]["version"], renamed["model"]["aliases"]) == (2, ["champion"])


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


def test_what_a_person_tries_is_compared_and_promoted_only_on_demand(clone, first):
    better, served = ("--set", "train.epochs=8"), champion(clone)
    preview = clone.json("train", "vit", *better, "--dry-run")
    assert preview["outcome"] == "train would be the first step to run: train.epochs 2 -> 8."
    tried = clone.train(*better)
    own = [name for name in ran(tried) if not name.endswith("_champion")]
    assert own == ["train", "evaluate"]
    assert (tried["decision"]["verdict"], tried["model"]["aliases"]) == ("better", [])
    assert champion(clone) == served
    again = clone.train(*better)
    assert again["unchanged"]
    assert "would be the new champion" in again["outcome"]

    number = tried["model"]["version"]
    promoted = clone.train(*better, "--promote")
    assert ran(promoted) == []
    assert promoted["model"] == tried["model"] | {"aliases": ["champion", "reference"]}
    [*_, compared, entry] = clone.json("history", "vit")
    assert [each["action"] for each in (compared, entry)] == ["compared", "promoted"]
    difference = entry["comparison"]["says"]
    newest = clone.retrain("history", "vit").stdout.splitlines()[3]  # below the heads
    assert f"1 -> {number}" in newest
    assert difference in newest
    client = tracking.client(Project(clone.root))
    for alias in ("champion", "reference"):
        client.set_registered_model_alias("vit", alias, str(served.version))
