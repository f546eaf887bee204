"""Damage in the store of a real clone is found and repaired; `retrain verify` and `retrain gc`."""

import os
import shutil
from pathlib import Path

import pytest

from retrain.disk import sha256_of
from tests import templates
from tests.flows.conftest import copy_clone, draw_photos, ran


@pytest.fixture
def copy(clone, first, tmp_path):
    """A copy of the clone after its first run, to be harmed."""
    return copy_clone(clone, tmp_path / "clone")


@pytest.fixture
def folders(copy, first):
    """Where the copy has the outputs of the first run, by step."""
    return {
        step["step"]: copy.root / Path(step["path"]).relative_to(Path(step["path"]).parents[3])
        for step in first["steps"]
        if step["path"]
    }


def flip(path, position=-1):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def registered_weights(copy, document):
    """The weights of a run's model, in its package."""
    found = (copy.root / "mlruns").rglob("model.safetensors")
    return next(path for path in found if sha256_of(path) == document["model"]["digest"])


def digests(document):
    return {step["step"]: step["digest"] for step in document["steps"][:3]}


@pytest.mark.slow
def test_flipped_bytes_in_what_a_training_reads_are_found_and_repaired(copy, first, folders):
    name = "train/images-00000.npy"
    flip(folders["preprocess"] / name)
    flip(folders["validate"] / "images.parquet")  # which is read to repair the other
    manifest = folders["pull"] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"parquet"', '"folders"'))
    document = copy.train("--set", "train.lr=0.0021")
    before = ["pull", "validate", "preprocess", "evaluate_champion", "train", "evaluate"]
    assert ran(document)[:6] == before
    why = {step["step"]: step["why"] for step in document["steps"]}
    assert why["pull"] == "its manifest.json has changed"
    assert why["validate"] == "images.parquet has changed"
    assert why["preprocess"] == f"{name} has changed"
    assert why["train"] == "train.lr 0.003 -> 0.0021"
    assert digests(document) == digests(first)
    copy.retrain("verify")


def test_a_damaged_model_is_not_promoted(copy, first, folders):
    flip(folders["train"] / "model" / "model.safetensors")
    document = copy.train("--run")
    assert ran(document) == ["train"]
    assert document["model"] == first["model"]


def test_dvc_finds_damage_in_what_it_takes(copy, folders):
    copy.retrain("step", "pull", "vit")
    flip(folders["validate"] / "images.parquet")
    done = copy.retrain("step", "validate", "vit")
    assert "is damaged (images.parquet has changed); it is made again." in done.stdout
    copy.retrain("verify")
    shutil.rmtree(folders["preprocess"])
    flip(folders["validate"] / "images.parquet")
    done = copy.retrain("step", "preprocess", "vit")
    assert "is damaged (images.parquet has changed); it is made again." in done.stdout


def test_verify_finds_damage_and_repair_takes_it_out(copy, folders):
    whole = (
        "No artifact in the store is damaged.\nNo package was changed.\n"
        "No ledger was changed.\nNo lineage was changed.\n"
    )
    assert copy.retrain("verify").stdout == whole
    flip(folders["validate"] / "images.parquet")
    output = copy.retrain("verify", code=1).stdout
    assert (
        f"validate {folders['validate'].name[:12]} is damaged: images.parquet has changed" in output
    )
    shown = copy.json("verify", code=1)
    assert [(damage["step"], damage["reason"]) for damage in shown["damaged"]] == [
        ("validate", "images.parquet has changed")
    ]
    assert folders["validate"].exists()
    assert "They were removed" in copy.retrain("verify", "--repair").stdout
    assert not folders["validate"].exists()
    copy.retrain("verify")


def test_a_damaged_package_is_refused_and_found(copy, first, folders):
    weights = registered_weights(copy, first)
    whole = weights.read_bytes()
    flip(weights, len(whole) // 2)
    for arguments in (
        ("train", "vit", "--set", "train.seed=5", "--refresh"),
        ("predict", "vit", "--input", str(folders["pull"] / "data"), "--output", "answers.parquet"),
    ):
        errors = copy.retrain(*arguments, code=1).stderr
        assert "Restore its files from a backup, or take another version" in errors
    what = f"The package of vit: version 1: artifacts/model/{weights.name} in"
    assert what in copy.retrain("verify", code=1).stdout
    weights.write_bytes(whole)
    assert "No package was changed." in copy.retrain("verify").stdout


def test_a_champion_that_is_not_there_is_told_where_nothing_changed(copy, first):
    weights = registered_weights(copy, first)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    for what in ("has another size than it was registered with", "is gone"):
        said = f"vit version 1 cannot be served: {weights} {what}. Restore its files from a backup"
        assert said in " ".join(copy.retrain("train", "vit", code=1).stderr.split())
        assert said in " ".join(copy.retrain("status").stdout.split())
        weights.unlink(missing_ok=True)
    weights.write_bytes(whole)
    assert copy.train()["unchanged"]
    (copy.root / "mlruns").rename(copy.root / "away")
    assert "the record of its lineage" in copy.json("status", "vit")[0]["fault"]
    (copy.root / "away").rename(copy.root / "mlruns")
    [description] = weights.parents[2].glob("MLmodel")
    description.write_text(description.read_text() + " ")
    assert "MLmodel in" in copy.retrain("verify", code=1).stdout


def test_a_registry_that_was_lost_gets_a_champion_only_if_a_person_says_so(copy, first):
    (copy.root / "mlflow.db").unlink()
    for command in (("train", "vit"), ("status",)):
        assert "mlflow.db is gone, and mlruns/ has" in copy.retrain(*command, code=1).stderr
    assert not (copy.root / "mlflow.db").exists()
    (copy.root / "mlruns").rename(copy.root / "old")
    templates.place_mlflow_database(copy.root)
    lost = f"the registry has no champion of vit, but run {first['run'][:8]} of"
    assert lost in copy.json("status", "vit")[0]["fault"]
    document = copy.train()
    assert (document["promoted"], ran(document)) == (False, [])
    assert document["outcome"].startswith(f"vit version 1 is not promoted: {lost}")
    assert document["outcome"].endswith("it is promoted only with --promote.")
    assert copy.json("status", "vit")[0]["champion"] is None
    assert copy.train("--promote")["promoted"]
    place = copy.root / "mlruns" / "vit" / copy.train()["look"]["MLflow run"]
    assert place.is_dir()
    assert copy.json("status", "vit")[0]["fault"] is None


def age(root, days=91):
    """Lets everything in a clone's state be older by as many days."""
    for path in (root / ".retrain").rglob("*"):
        if not path.is_symlink():
            when = path.stat().st_mtime - days * 86400
            os.utime(path, (when, when))


@pytest.mark.slow
def test_gc_removes_what_no_run_has_used_for_long_and_no_champion_came_from(copy, folders):
    other = copy.train("--set", "train.lr=0.0021")
    paths = {step["step"]: step["path"] for step in other["steps"]}
    scores = Path(paths["evaluate"])
    age(copy.root)
    copy.train("--run")
    shown = copy.json("gc", "--dry-run")
    artifacts = [each["name"] for each in shown["garbage"] if each["kind"] == "artifact"]
    assert f"evaluate {scores.name}" in artifacts
    assert scores.exists()
    assert scores.name[:12] in copy.retrain("gc", "--yes").stdout
    assert not scores.exists()
    assert all(folder.exists() for folder in folders.values())  # of the champion
    assert "Removed: nothing, 0 bytes.\n" in copy.retrain("gc", "--yes").stdout
    assert ran(copy.train("--run")) == []


@pytest.mark.slow
def test_gc_keeps_what_the_champion_came_from(copy, tmp_path):
    copy.train("--set", "train.lr=0.0021", "--set", "checks.max_side=9000")
    age(copy.root)
    assert "artifact" in copy.retrain("gc", "--yes").stdout
    photos = draw_photos(tmp_path / "photos", size=8)
    copy.retrain("drift", "vit", "--input", str(photos))
    steps = copy.json("lineage", "vit@champion")["lineage"]["steps"]
    [key] = [made["key"] for made in steps if made["step"] == "validate"]
    assert (copy.root / ".retrain" / "store" / "validate" / key / "images.parquet").is_file()
    for place in ("store", "drift"):  # the reference lies in MLflow
        shutil.rmtree(copy.root / ".retrain" / place)
    copy.retrain("drift", "vit", "--input", str(photos))


def test_gc_leaves_what_a_run_that_changes_nothing_has_used(copy, first):
    age(copy.root)
    assert copy.train()["unchanged"]
    garbage = copy.json("gc", "--days", "1", "--yes")["garbage"]
    assert "artifact" not in {each["kind"] for each in garbage}
