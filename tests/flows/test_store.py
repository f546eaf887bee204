"""The store of a real clone: `retrain verify` and `retrain gc`."""

import os

import pytest

from retrain.file_io import sha256_of
from tests import templates
from tests.flows.conftest import copy_clone, ran


@pytest.fixture
def copy(clone, first, tmp_path):
    """A copy of the clone after its first run, to be harmed."""
    return copy_clone(clone, tmp_path / "clone")


def flip(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def registered_weights(copy, document):
    """The weights of a run's model, in its package."""
    found = (copy.root / "mlruns").rglob("model.safetensors")
    return next(path for path in found if sha256_of(path) == document["model"]["digest"])


def test_verify_finds_damage_and_repair_takes_it_out(copy, first):
    whole = (
        "No artifact in the store is damaged.\nNo package was changed.\n"
        "No ledger was changed.\nNo lineage was changed.\n"
    )
    assert copy.retrain("verify").stdout == whole
    [images] = copy.root.glob(".retrain/store/validate/*/images.parquet")
    weights = registered_weights(copy, first)
    flip(images)
    flip(weights)
    output = copy.retrain("verify", code=1).stdout
    damage = "is damaged: images.parquet has changed"
    assert f"validate {images.parent.name[:12]} {damage}" in output
    assert f"The package of vit: version 1: artifacts/model/{weights.name} in" in output
    assert len(copy.json("verify", code=1)["damaged"]) == 1
    assert images.exists()
    assert "They were removed" in copy.retrain("verify", "--repair", code=1).stdout
    assert not images.parent.exists()
    flip(weights)
    assert copy.retrain("verify").stdout == whole


def test_an_output_whose_file_was_damaged_is_made_again_and_nothing_else(copy, first):
    [classes] = copy.root.glob(".retrain/store/evaluate/*/classes.json")
    whole = classes.read_bytes()
    classes.write_bytes(whole[:100] + b"\xff" + whole[101:])
    preview = copy.json("train", "vit", "--dry-run")
    assert preview["outcome"].startswith("gate would be the first step to run: the output of evalu")
    assert classes.read_bytes() != whole
    again = copy.train()
    assert ran(again) == ["evaluate"]
    assert again["model"]["digest"] == first["model"]["digest"]
    assert classes.read_bytes() == whole
    [images] = copy.root.glob(".retrain/store/validate/*/images.parquet")
    images.write_bytes(b"no" + images.read_bytes()[2:])
    assert ran(copy.train("--set", "train.epochs=1"))[0] == "validate"


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


@pytest.mark.slow
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


def test_gc_leaves_what_a_run_that_changes_nothing_has_used(copy, first):
    for path in (copy.root / ".retrain").rglob("*"):
        if not path.is_symlink():
            when = path.stat().st_mtime - 91 * 86400
            os.utime(path, (when, when))
    assert copy.train()["unchanged"]
    garbage = copy.json("gc", "--days", "1", "--yes")["garbage"]
    assert "artifact" not in {each["kind"] for each in garbage}
