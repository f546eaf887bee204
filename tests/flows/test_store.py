"""The store of a real clone: `retrain verify` and `retrain gc`."""

import os

import pytest

from retrain.disk import sha256_of
from tests.flows.conftest import copy_clone


@pytest.fixture
def copy(clone, first, tmp_path):
    """A copy of the clone after its first run, to be harmed."""
    return copy_clone(clone, tmp_path / "clone")


def flip(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_verify_finds_damage_and_repair_takes_it_out(copy, first):
    whole = (
        "No artifact in the store is damaged.\nNo package was changed.\n"
        "No ledger was changed.\nNo lineage was changed.\n"
    )
    assert copy.retrain("verify").stdout == whole
    [images] = copy.root.glob(".retrain/store/validate/*/images.parquet")
    packaged = copy.root.glob("mlruns/**/model.safetensors")
    weights = next(path for path in packaged if sha256_of(path) == first["model"]["digest"])
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


def test_gc_leaves_what_a_run_that_changes_nothing_has_used(copy, first):
    for path in (copy.root / ".retrain").rglob("*"):
        if not path.is_symlink():
            when = path.stat().st_mtime - 91 * 86400
            os.utime(path, (when, when))
    assert copy.train()["unchanged"]
    garbage = copy.json("gc", "--days", "1", "--yes")["garbage"]
    assert "artifact" not in {each["kind"] for each in garbage}
