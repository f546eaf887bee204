"""A disk that is full in the middle of a run: a real one, of a few megabytes."""

import json
import shutil
import subprocess

import pytest

from tests.flows.conftest import RETRAIN, copy_clone, ran

pytestmark = pytest.mark.slow

SPARE = 150_000  # bytes: more than the check before a run writes, and less than a training does


@pytest.fixture(params=[".retrain", "mlruns"])
def full(request, clone, first, tmp_path):
    """A copy of the clone, with a folder on a disk that is almost full."""
    copy = copy_clone(clone, tmp_path / "clone")
    folder, aside = copy.root / request.param, tmp_path / "aside"
    folder.rename(aside)
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"a disk of a few megabytes cannot be mounted here: {done.stderr.strip()}")
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield copy, folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_named_and_the_next_run_is_right(full, clone):
    copy, folder = full
    filler = folder / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(folder).free - SPARE))
    seed = "train.seed=6" if folder.name == "mlruns" else "train.seed=7"
    done = copy.run(*RETRAIN, "train", "vit", "--json", "--set", seed, code=1)
    [error] = json.loads(done.stdout).values()
    assert error.startswith("The disk is full")
    assert str(folder) in error
    assert f"retrain: {error}" in done.stderr.splitlines()
    filler.unlink()
    document = copy.train("--set", seed)
    assert document["model"]["digest"] == clone.train("--set", seed)["model"]["digest"]
    # Of MLflow's files only the package is too large: what comes before it is in the store.
    assert ran(document) or folder.name == "mlruns"
